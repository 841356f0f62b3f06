// A map and the arithmetic that the page does on it: no drawing, no elements.
import { floats } from "./wire.js";

/** Unpack a map: {h, w, values, lo, hi, signed, peak}. */
export function field(packed) {
  return { ...packed, values: floats(packed) };
}

/** The map at another size, bilinear with pixel centres in the middle of the cells (align_corners=False), never clipped. */
export function resize(map, width, height, smooth = true) {
  const out = new Float32Array(width * height);
  const left = new Int32Array(width), right = new Int32Array(width), share = new Float32Array(width);
  for (let x = 0; x < width; x++) {
    const at = smooth ? Math.max(0, ((x + 0.5) * map.w) / width - 0.5) : Math.floor((x * map.w) / width);
    left[x] = Math.min(map.w - 1, Math.floor(at));
    right[x] = smooth ? Math.min(map.w - 1, left[x] + 1) : left[x];
    share[x] = at - left[x];
  }
  for (let y = 0; y < height; y++) {
    const at = smooth ? Math.max(0, ((y + 0.5) * map.h) / height - 0.5) : Math.floor((y * map.h) / height);
    const top = Math.min(map.h - 1, Math.floor(at));
    const below = smooth ? Math.min(map.h - 1, top + 1) : top;
    const down = at - top, a = top * map.w, b = below * map.w;
    for (let x = 0, p = y * width; x < width; x++, p++) {
      const l = left[x], r = right[x], s = share[x];
      const up = map.values[a + l] + s * (map.values[a + r] - map.values[a + l]);
      const low = map.values[b + l] + s * (map.values[b + r] - map.values[b + l]);
      out[p] = up + down * (low - up);
    }
  }
  return out;
}

/** The limits in which a map is drawn unless the visitor sets others: zero-centred where it has two signs. */
export function limits(map) {
  const far = map.far || Math.max(Math.abs(map.lo), Math.abs(map.hi)) || 1;
  if (map.signed) return [-far, far];
  const [lo, hi] = [Math.min(0, map.lo), Math.max(0, Math.min(map.hi, far))];
  return [lo, hi > lo ? hi : lo + 1];
}

/** Which colours "auto" means for this map. */
export function colours(map, chosen) {
  return chosen === "auto" ? (map.signed ? "signed" : "magma") : chosen;
}

/** Row and column of the largest value (of the largest size, where the map has two signs). */
export function peak(map) {
  let best = 0, found = -Infinity;
  map.values.forEach((v, i) => {
    const size = map.signed ? Math.abs(v) : v;
    if (size > found) { found = size; best = i; }
  });
  return [Math.floor(best / map.w), best % map.w];
}

/** How many cells fall into each of `bins` equal steps between the map's ends. */
export function histogram(map, bins = 40) {
  const counts = new Array(bins).fill(0);
  const step = (map.hi - map.lo) / bins;
  for (const v of map.values) {
    if (Number.isFinite(v)) counts[step > 0 ? Math.min(bins - 1, Math.floor((v - map.lo) / step)) : 0] += 1;
  }
  return counts;
}
