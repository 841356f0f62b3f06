// Draws every map by the rules of explainers/maps/overlays.py; tests compare both implementations.
import { table } from "./colors.js";
import { BLUE, LUMA, RED, RULE } from "./constants.js";
import { blur, enlarge, quantile, roughness } from "./field.js";

const FINEST = 4096;
const WEIGHTS = Float32Array.from({ length: FINEST + 1 }, (_, i) => RULE.strength * (i / FINEST) ** RULE.curve);

/**
 * @typedef {object} Rendering a map and how it is drawn, as `View` in explainers/maps/overlays.py
 * @property {Float32Array} values
 * @property {number} h
 * @property {number} w
 * @property {string} colors
 * @property {number} low
 * @property {number} high
 * @property {boolean} fine whether the image below is dark and contours are left out
 * @property {boolean} smooth whether cells are interpolated
 * @property {boolean} clipped whether values exceed the color range
 * @property {boolean} [lines] false: without contours
 * @property {boolean} [mapOnly] true: without the image
 */

/** Return the blur of a fine map for display, relative to its longer side. */
export const sigmaOf = (values) => (values.some((v) => v < 0) ? RULE.signed_blur : RULE.blur);

/**
 * Choose how a map is drawn.
 * @param {import("./field.js").Field} map
 * @param {{colors?: string, limits?: [number, number] | null, signed?: boolean, smooth?: boolean}} options
 * @returns {Rendering}
 */
export function view(map, { colors = "auto", limits = null, signed = true, smooth = true } = {}) {
  /** @type {Float32Array} */
  let values = Float32Array.from(map.values, (v) => (Number.isFinite(v) ? (signed ? v : Math.abs(v)) : NaN));
  const { h, w } = map;
  const fine = values.length >= RULE.fine && roughness({ values, w }) > RULE.rough;
  if (fine && smooth) values = blur({ values, h, w }, sigmaOf(values) * Math.max(h, w));
  const finite = values.filter((v) => Number.isFinite(v)),
    lowest = finite.length ? finite.reduce((least, v) => Math.min(least, v)) : 0,
    highest = finite.length ? finite.reduce((most, v) => Math.max(most, v)) : 0;
  const name = colors === "auto" ? (lowest < 0 ? "signed" : "magma") : colors;
  const largest = Math.max(Math.abs(lowest), Math.abs(highest));
  const far = (fine && finite.length ? quantile(finite.map(Math.abs), RULE.full) : 0) || largest;
  let [low, high] =
    name === "signed" ? [-(far || 1), far || 1] : [Math.min(lowest, 0), Math.max(Math.min(highest, far), 0)];
  if (!(high > low)) high = low + 1;
  if (limits) [low, high] = limits;
  if (name === "signed") {
    high = Math.max(Math.abs(low), Math.abs(high));
    low = -high;
  }
  return {
    values,
    h,
    w,
    colors: name,
    low,
    high,
    fine,
    smooth,
    clipped: largest > Math.max(Math.abs(low), Math.abs(high)),
  };
}

/**
 * Return one color range for several maps.
 * @template {import("./field.js").Field} Map
 * @param {Map[]} maps
 * @param {(map: Map) => Parameters<typeof view>[1]} styleOf how each is drawn
 * @returns {[number, number]}
 */
export function commonRange(maps, styleOf) {
  const views = maps.map((map) => view(map, styleOf(map)));
  return [Math.min(...views.map(({ low }) => low)), Math.max(...views.map(({ high }) => high))];
}

/**
 * Draw the map over the image: desaturate, color, draw contours, stripe NaN.
 * @param {Uint8ClampedArray} pixels RGBA of the image, which are changed
 * @param {number} width
 * @param {number} height
 * @param {Rendering} rendering
 */
export function draw(pixels, width, height, rendering) {
  const values = enlarge(rendering, width, height, rendering.smooth);
  const sizes = blendColors(pixels, values, rendering),
    isNegative = (i) => rendering.colors === "signed" && values[i] < 0;
  if (!rendering.fine && rendering.lines !== false) contours(pixels, sizes, width, height, isNegative);
  for (let i = 0, p = 0; i < values.length; i++, p += 4) {
    if (values[i] === values[i]) continue;
    const stripe = (Math.floor((Math.floor(i / width) + (i % width)) / 4) % 2) * 255;
    pixels[p] = pixels[p + 1] = pixels[p + 2] = stripe;
  }
}

/**
 * Desaturate `pixels` and blend in the colors of `values`; returns the magnitudes relative to the color range.
 *
 * `mapOnly`: draw only the colormap, without an image.
 * @param {Uint8ClampedArray} pixels
 * @param {Float32Array} values
 * @param {Rendering} rendering
 */
function blendColors(pixels, values, { colors, low, high, fine, mapOnly }) {
  const sizes = new Float32Array(values.length);
  const signed = colors === "signed",
    color = signed && !mapOnly ? null : table(colors);
  const [zero, scale] = signed ? [0, 1 / high] : [low, 1 / (high - low)];
  const [keep, light] = fine ? [RULE.fine_color, RULE.fine_light] : [RULE.coarse_color, RULE.coarse_light];
  for (let i = 0, p = 0; i < values.length; i++, p += 4) {
    const share = (values[i] - zero) * scale;
    const size = Math.min(1, signed ? Math.abs(share) : Math.max(0, share));
    sizes[i] = size;
    if (mapOnly) {
      const at = 3 * Math.round(255 * (signed ? (1 + Math.max(-1, Math.min(1, share))) / 2 : size)) || 0;
      for (let c = 0; c < 3; c++) pixels[p + c] = color[at + c];
      continue;
    }
    const gray = LUMA[0] * pixels[p] + LUMA[1] * pixels[p + 1] + LUMA[2] * pixels[p + 2];
    const part = WEIGHTS[Math.round(size * FINEST)] || 0; // NaN has weight 0
    const k = 3 * Math.round(size * 255) || 0;
    const end = share < 0 ? BLUE : RED;
    for (let c = 0; c < 3; c++) {
      const under = (gray + (pixels[p + c] - gray) * keep) * light;
      pixels[p + c] = under + ((signed ? end[c] : color[k + c]) - under) * part;
    }
  }
  return sizes;
}

/**
 * Draw white lines with a dark halo where `sizes` cross the two levels, and dark lines with a white halo around
 * negative values; distances use the local slope.
 */
function contours(pixels, sizes, width, height, isNegative) {
  const wide = Math.max(1, RULE.line * Math.min(width, height));
  const reach = Math.ceil(1.5 * wide + 0.5);
  const levels = [RULE.low_line, RULE.high_line];
  const crossed = (x, y, level) => {
    // a step between two larger values is not a contour
    let above = false,
      below = false;
    for (let v = Math.max(0, y - reach); v <= Math.min(height - 1, y + reach); v++) {
      for (let u = Math.max(0, x - reach); u <= Math.min(width - 1, x + reach); u++) {
        if (sizes[v * width + u] >= level) above = true;
        else below = true;
        if (above && below) return true;
      }
    }
    return false;
  };
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) {
      const here = sizes[i];
      const across = Math.max(x ? Math.abs(here - sizes[i - 1]) : 0, x < width - 1 ? Math.abs(sizes[i + 1] - here) : 0);
      const down = Math.max(
        y ? Math.abs(here - sizes[i - width]) : 0,
        y < height - 1 ? Math.abs(sizes[i + width] - here) : 0,
      );
      const most = Math.max(1e-6, across + down); // hypot is slow, and few pixels are near a level
      if (!levels.some((level) => Math.abs(here - level) < (1.5 * wide + 0.5) * most)) continue;
      const slope = Math.max(1e-6, Math.hypot(across, down));
      let line = 0,
        halo = 0;
      for (const level of levels) {
        const away = Math.abs(here - level) / slope;
        if (!(away < 1.5 * wide + 0.5) || !crossed(x, y, level)) continue;
        line = Math.max(line, Math.min(1, Math.max(0, wide / 2 + 0.5 - away)));
        halo = Math.max(halo, Math.min(1, (1.5 * wide + 0.5 - away) / wide));
      }
      if (!halo) continue;
      const ground = isNegative(i) ? 255 : 0;
      for (let p = 4 * i; p < 4 * i + 3; p++) {
        const under = pixels[p] + (ground - pixels[p]) * RULE.halo * halo;
        pixels[p] = under + (255 - ground - under) * line;
      }
    }
  }
}

/**
 * Draw the colors of evenly spaced values on a gray image.
 * @param {Uint8ClampedArray} pixels RGBA, one pixel per value, which are changed
 * @param {Rendering} rendering
 * @returns {Uint8ClampedArray}
 */
export function bar(pixels, rendering) {
  const steps = pixels.length / 4;
  const from = rendering.colors === "signed" ? -1 : 0;
  for (let p = 0; p < pixels.length; p++) pixels[p] = p % 4 === 3 ? 255 : 128;
  const values = Float32Array.from({ length: steps }, (_, i) => from + ((1 - from) * i) / (steps - 1));
  blendColors(pixels, values, { ...rendering, low: from, high: 1 });
  return pixels;
}

/**
 * Draw a color bar.
 * @param {HTMLCanvasElement} canvas
 * @param {Rendering} rendering
 */
export function drawBar(canvas, rendering) {
  paintPixels(canvas, canvas.width, 1, (pixels) => bar(pixels, rendering));
}

/**
 * Set the pixels of a canvas.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @param {(pixels: Uint8ClampedArray) => void} fill sets RGBA values, which are 0
 */
export function paintPixels(canvas, width, height, fill) {
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d"),
    pixels = context.createImageData(width, height);
  fill(pixels.data);
  context.putImageData(pixels, 0, 0);
}
