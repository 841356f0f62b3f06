// How every map is drawn: the rules of explainers/maps/overlays.py, which the tests compare with these.
import { BLUE, RED, table } from "./colours.js";
import { blur, enlarge, quantile, roughness } from "./field.js";

/** Explained in explainers/maps/overlays.py. */
export const RULE = {
  fine: 1024,
  rough: 0.1,
  coarse_colour: 0.15,
  coarse_light: 0.8,
  fine_colour: 0,
  fine_light: 0.45,
  strength: 0.9,
  curve: 0.65,
  low_line: 0.5,
  high_line: 0.8,
  line: 1 / 360,
  halo: 0.55,
  full: 0.995,
  blur: 1 / 224,
};
const LUMA = [0.2126, 0.7152, 0.0722];
const FINEST = 4096;
const WEIGHTS = Float32Array.from({ length: FINEST + 1 }, (_, i) => RULE.strength * (i / FINEST) ** RULE.curve);

/** Choose how a map is drawn: {values, h, w, colours, low, high, fine, smooth, clipped}. */
export function view(map, { colours = "auto", limits = null, signed = true, smooth = true } = {}) {
  let values = Float32Array.from(map.values, (v) => (Number.isFinite(v) ? (signed ? v : Math.abs(v)) : NaN));
  const { h, w } = map;
  const fine = values.length >= RULE.fine && roughness({ values, w }) > RULE.rough;
  if (fine && smooth) values = blur({ values, h, w }, RULE.blur * Math.max(h, w));
  const finite = values.filter((v) => Number.isFinite(v));
  let lowest = finite.length ? Infinity : 0, highest = finite.length ? -Infinity : 0;
  for (const v of finite) { lowest = Math.min(lowest, v); highest = Math.max(highest, v); }
  const name = colours === "auto" ? (lowest < 0 ? "signed" : "magma") : colours;
  const largest = Math.max(Math.abs(lowest), Math.abs(highest));
  const far = (fine && finite.length ? quantile(finite.map(Math.abs), RULE.full) : 0) || largest;
  let [low, high] = name === "signed" ? [-(far || 1), far || 1] : [Math.min(lowest, 0), Math.max(Math.min(highest, far), 0)];
  if (!(high > low)) high = low + 1;
  if (limits) [low, high] = limits;
  if (name === "signed") { high = Math.max(Math.abs(low), Math.abs(high)); low = -high; }
  return { values, h, w, colours: name, low, high, fine, smooth, clipped: largest > Math.max(Math.abs(low), Math.abs(high)) };
}

/** Draw the map over the photograph in RGBA `pixels` of this size: desaturate, colour, draw contours, stripe NaN. */
export function draw(pixels, width, height, look) {
  const values = enlarge(look, width, height, look.smooth);
  const sizes = tint(pixels, values, look);
  if (!look.fine && look.lines !== false) contours(pixels, sizes, width, height);
  for (let i = 0, p = 0; i < values.length; i++, p += 4) {
    if (values[i] === values[i]) continue;
    const stripe = (Math.floor((Math.floor(i / width) + (i % width)) / 4) % 2) * 255;
    pixels[p] = pixels[p + 1] = pixels[p + 2] = stripe;
  }
}

/** Desaturate `pixels` and blend in the colours of `values`; returns their magnitudes in parts of the colour range.
 *
 * `alone`: the colours of the table as they are, without a photograph.
 */
function tint(pixels, values, { colours, low, high, fine, alone }) {
  const sizes = new Float32Array(values.length);
  const signed = colours === "signed", colour = signed && !alone ? null : table(colours);
  const [zero, scale] = signed ? [0, 1 / high] : [low, 1 / (high - low)];
  const [keep, light] = fine ? [RULE.fine_colour, RULE.fine_light] : [RULE.coarse_colour, RULE.coarse_light];
  for (let i = 0, p = 0; i < values.length; i++, p += 4) {
    const share = (values[i] - zero) * scale;
    const size = Math.min(1, signed ? Math.abs(share) : Math.max(0, share));
    sizes[i] = size;
    if (alone) {
      const at = 3 * Math.round(255 * (signed ? (1 + Math.max(-1, Math.min(1, share))) / 2 : size)) || 0;
      for (let c = 0; c < 3; c++) pixels[p + c] = colour[at + c];
      continue;
    }
    const grey = LUMA[0] * pixels[p] + LUMA[1] * pixels[p + 1] + LUMA[2] * pixels[p + 2];
    const part = WEIGHTS[Math.round(size * FINEST)] || 0;     // NaN has no weight
    const k = 3 * Math.round(size * 255) || 0;
    const end = share < 0 ? BLUE : RED;
    for (let c = 0; c < 3; c++) {
      const under = (grey + (pixels[p + c] - grey) * keep) * light;
      pixels[p + c] = under + ((signed ? end[c] : colour[k + c]) - under) * part;
    }
  }
  return sizes;
}

/** White lines with a dark halo where `sizes` cross the two levels; distances by the local slope. */
function contours(pixels, sizes, width, height) {
  const wide = Math.max(1, RULE.line * Math.min(width, height));
  const reach = Math.ceil(1.5 * wide + 0.5);
  const levels = [RULE.low_line, RULE.high_line];
  const crossed = (x, y, level) => {                     // a step between two larger values is no contour
    let above = false, below = false;
    for (let v = Math.max(0, y - reach); v <= Math.min(height - 1, y + reach); v++) {
      for (let u = Math.max(0, x - reach); u <= Math.min(width - 1, x + reach); u++) {
        if (sizes[v * width + u] >= level) above = true; else below = true;
        if (above && below) return true;
      }
    }
    return false;
  };
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) {
      const here = sizes[i];
      const across = Math.max(x ? Math.abs(here - sizes[i - 1]) : 0, x < width - 1 ? Math.abs(sizes[i + 1] - here) : 0);
      const down = Math.max(y ? Math.abs(here - sizes[i - width]) : 0, y < height - 1 ? Math.abs(sizes[i + width] - here) : 0);
      const most = Math.max(1e-6, across + down);           // hypot is slow, and few pixels are near a level
      if (!levels.some((level) => Math.abs(here - level) < (1.5 * wide + 0.5) * most)) continue;
      const slope = Math.max(1e-6, Math.hypot(across, down));
      let line = 0, halo = 0;
      for (const level of levels) {
        const away = Math.abs(here - level) / slope;
        if (!(away < 1.5 * wide + 0.5) || !crossed(x, y, level)) continue;
        line = Math.max(line, Math.min(1, Math.max(0, wide / 2 + 0.5 - away)));
        halo = Math.max(halo, Math.min(1, (1.5 * wide + 0.5 - away) / wide));
      }
      if (!halo) continue;
      for (let p = 4 * i; p < 4 * i + 3; p++) {
        const under = pixels[p] * (1 - RULE.halo * halo);
        pixels[p] = under + (255 - under) * line;
      }
    }
  }
}

/** The colours of evenly spaced values on a grey photograph, as RGBA `pixels`. */
export function bar(pixels, look) {
  const steps = pixels.length / 4;
  const from = look.colours === "signed" ? -1 : 0;
  for (let p = 0; p < pixels.length; p++) pixels[p] = p % 4 === 3 ? 255 : 128;
  tint(pixels, Float32Array.from({ length: steps }, (_, i) => from + ((1 - from) * i) / (steps - 1)), { ...look, low: from, high: 1 });
  return pixels;
}
