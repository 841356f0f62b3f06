// Small images of patches and kernels: one square for each number, or colors for three channels.
import { table } from "../drawing/colors.js";
import { paintPixels } from "../drawing/paint.js";
import { formatValue, make } from "../wire.js";

const CELL = 36; // px of a square with its number
const SMALL = 8; // px of a square in a list of kernels

/**
 * Draw numbers as squares, blue to red around 0, with their values.
 * @param {ArrayLike<number>} values row by row
 * @param {number} width
 * @param {string} caption
 * @param {ArrayLike<number>} [inside] 0 at padding, which is hatched
 */
export function heat(values, width, caption, inside = null) {
  const height = values.length / width,
    colors = table("signed"),
    largest = Math.max(...Array.from(values, Math.abs)) || 1;
  const cells = Array.from(values, (value, k) => {
    const at = 3 * Math.round(255 * (0.5 + value / largest / 2)),
      [r, g, b] = colors.slice(at, at + 3);
    const dark = 0.3 * r + 0.6 * g + 0.1 * b < 140;
    const style = `background:rgb(${r},${g},${b});color:${dark ? "#fff" : "#000"}`;
    return make("span", { style, text: shorten(value), "data-outside": Boolean(inside && !inside[k]) });
  });
  const size = Math.max(24, Math.min(CELL, Math.floor(180 / width)));
  const style = `grid-template-columns:repeat(${width},${size}px);grid-auto-rows:${size}px`;
  const label = `${caption}: ${width} × ${height}`;
  return make(
    "figure",
    {},
    make("figcaption", { text: caption }),
    make("div", { class: "hl-squares", style, role: "img", "aria-label": label, "data-small": width > 5 }, ...cells),
  );
}

/** Return a number of at most five characters, for a square. */
function shorten(value) {
  const size = Math.abs(value);
  return size && size < 0.01 ? value.toExponential(0).replace("-", "−") : formatValue(Number(value.toPrecision(2)));
}

/**
 * Draw three channels as a color image.
 * @param {ArrayLike<number>} values [3, h, w]
 * @param {number} width
 * @param {number} cell CSS pixels of a square
 * @param {[number, number]} range values of black and white
 */
export function colorImage(values, width, cell, [low, high]) {
  const plane = values.length / 3,
    height = plane / width;
  const canvas = make("canvas", { class: "hl-arithmetic-color", style: `width:${width * cell}px` });
  paintPixels(canvas, width, height, (pixels) => {
    for (let k = 0; k < plane; k++) {
      for (let c = 0; c < 3; c++) pixels[4 * k + c] = (255 * (values[c * plane + k] - low)) / (high - low);
      pixels[4 * k + 3] = 255;
    }
  });
  return canvas;
}

/**
 * Return the range of a color image: the values themselves, or symmetric around 0 for weights.
 * @param {ArrayLike<number>} values
 * @param {boolean} symmetric
 * @returns {[number, number]}
 */
export function colorRange(values, symmetric) {
  const list = Array.from(values),
    largest = Math.max(...list.map(Math.abs)) || 1;
  if (symmetric) return [-largest, largest];
  const [low, high] = [Math.min(...list), Math.max(...list)];
  return [low, high > low ? high : low + 1];
}

/** Draw all kernels [K, 3, h, w] in color, with the chosen one marked. */
export function kernelList(values, [count, , height, width], chosen) {
  const size = 3 * height * width,
    range = colorRange(values, true),
    cell = Math.max(2, Math.min(SMALL, Math.floor(32 / width)));
  return Array.from({ length: count }, (_, k) => {
    const canvas = colorImage(values.slice(k * size, (k + 1) * size), width, cell, range);
    canvas.dataset.chosen = String(k === chosen);
    canvas.title = String(k);
    return canvas;
  });
}
