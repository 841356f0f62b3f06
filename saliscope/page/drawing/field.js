// Arithmetic on maps, as in explainers/maps/overlays.py. No drawing and no DOM elements.
import { floats } from "../wire.js";

/** @typedef {{values: Float32Array | number[], h: number, w: number}} Field a map, row by row */

/**
 * Unpack a map.
 * @param {any} packed with `h`, `w`, `lo`, `hi`, `signed`, and the values as for `floats`
 * @returns {Field & {lo: number, hi: number, signed: boolean, by_size?: boolean, id?: number}}
 */
export function unpackMap(packed) {
  return { ...packed, values: floats(packed) };
}

/**
 * Return the monotone cubic slope at a cell from the differences on both sides: their mean, limited to three times
 * either one; 0 if their signs differ.
 */
function slope(before, after) {
  if (!(before * after > 0)) return 0;
  const mean = (before + after) / 2,
    steepest = 3 * Math.min(Math.abs(before), Math.abs(after));
  return Math.max(-steepest, Math.min(steepest, mean));
}

/** Resample one row of `cells` values (`step` apart in `from`) to `side` values (`stride` apart in `to`). */
function resampleRow(from, start, step, cells, to, at, stride, side, smooth) {
  const value = (i) => from[start + step * Math.min(cells - 1, Math.max(0, i))];
  for (let k = 0; k < side; k++) {
    let v;
    if (side === cells) v = value(k);
    else if (!smooth) v = value(Math.floor(((2 * k + 1) * cells) / (2 * side)));
    else if (side < cells) {
      // mean of the covered cells
      const first = Math.floor((k * cells) / side),
        last = Math.ceil(((k + 1) * cells) / side);
      v = 0;
      for (let i = first; i < last; i++) v += value(i);
      v /= last - first;
    } else {
      const position = ((k + 0.5) * cells) / side - 0.5,
        i = Math.floor(position),
        t = position - i;
      const b = value(i),
        c = value(i + 1),
        rise = c - b;
      let a = value(i - 1),
        d = value(i + 2);
      if (a !== a) a = b;
      if (d !== d) d = c;
      const s = slope(b - a, rise),
        e = slope(rise, d - c);
      v = b + t * (s + t * (3 * rise - 2 * s - e + t * (s + e - 2 * rise)));
    }
    to[at + stride * k] = v;
  }
}

/**
 * Resize the map: monotone cubic interpolation, which never overshoots, or nearest cells (not `smooth`).
 * @param {Field} map
 * @param {number} width
 * @param {number} height
 * @param {boolean} smooth
 * @returns {Float32Array}
 */
export function enlarge(map, width, height, smooth = true) {
  const rows = new Float32Array(map.h * width),
    out = new Float32Array(height * width);
  for (let y = 0; y < map.h; y++) resampleRow(map.values, y * map.w, 1, map.w, rows, y * width, 1, width, smooth);
  for (let x = 0; x < width; x++) resampleRow(rows, x, width, map.h, out, x, width, height, smooth);
  return out;
}

/**
 * Gaussian blur by `sigma` cells, truncated at 3 sigma, with replicated borders.
 * @param {Field} map
 * @param {number} sigma
 * @returns {Float32Array}
 */
export function blur(map, sigma) {
  const radius = Math.ceil(3 * sigma);
  const kernel = Array.from({ length: 2 * radius + 1 }, (_, i) => Math.exp(-((i - radius) ** 2) / (2 * sigma * sigma)));
  const whole = kernel.reduce((sum, each) => sum + each);
  const convolve = (from, count, length, step, jump) => {
    const to = new Float32Array(from.length);
    for (let n = 0; n < count; n++) {
      for (let i = 0; i < length; i++) {
        let sum = 0;
        for (let k = -radius; k <= radius; k++)
          sum += kernel[k + radius] * from[n * jump + step * Math.min(length - 1, Math.max(0, i + k))];
        to[n * jump + step * i] = sum / whole;
      }
    }
    return to;
  };
  return convolve(convolve(map.values, map.h, map.w, 1, map.w), map.w, map.h, map.w, 1);
}

/**
 * Mean squared difference of neighbors over twice the variance: 0 for a plane, about 1 for white noise.
 * @param {{values: Float32Array, w: number}} map
 * @returns {number}
 */
export function roughness({ values, w }) {
  const finite = values.filter((v) => Number.isFinite(v)),
    mean = finite.reduce((sum, v) => sum + v, 0) / finite.length,
    squares = finite.reduce((sum, v) => sum + (v - mean) ** 2, 0);
  if (!(squares > 0)) return 0;
  let steps = 0,
    rough = 0;
  const add = (step) => {
    if (Number.isFinite(step)) {
      steps += 1;
      rough += step * step;
    }
  };
  for (let i = 0; i < values.length; i++) {
    if ((i + 1) % w) add(values[i + 1] - values[i]);
    if (i + w < values.length) add(values[i + w] - values[i]);
  }
  return steps ? rough / steps / ((2 * squares) / finite.length) : 0;
}

/**
 * Quantile of finite values, with linear interpolation.
 * @param {ArrayLike<number>} values
 * @param {number} share from 0 to 1
 * @returns {number}
 */
export function quantile(values, share) {
  const ordered = Float32Array.from(values).sort();
  const at = share * (ordered.length - 1),
    below = Math.floor(at),
    above = Math.min(below + 1, ordered.length - 1);
  return ordered[below] + (at - below) * (ordered[above] - ordered[below]);
}

/**
 * Return row and column of the largest value, by magnitude in a signed map.
 * @param {Field & {signed: boolean}} map
 * @returns {[number, number]}
 */
export function peak(map) {
  let best = 0,
    found = -Infinity;
  map.values.forEach((v, i) => {
    const size = map.signed ? Math.abs(v) : v;
    if (size > found) {
      found = size;
      best = i;
    }
  });
  return [Math.floor(best / map.w), best % map.w];
}
