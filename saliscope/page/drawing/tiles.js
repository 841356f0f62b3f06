// Planes of one byte per cell, each with its own range, drawn as tiles: by themselves, over the image, or on one sheet.
import { table } from "./colors.js";
import { BLUE, RED } from "./constants.js";
import { view } from "./paint.js";
import { drawOver } from "./surface.js";
import { bytes, floats, make } from "../wire.js";

const FINEST = 160; // px of a tile over the image
const LARGEST = 8192; // px per side of the sheet of all tiles
// Signed values: black is zero, as in the sequential colormaps.
const STOPS = [[150, 200, 255], BLUE, [0, 0, 4], RED, [255, 175, 140]];

function colors(signed) {
  const sequential = table("magma"),
    found = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (STOPS.length - 1),
      k = Math.min(STOPS.length - 2, Math.floor(at));
    const [r, g, b] = [0, 1, 2].map((c) =>
      signed ? Math.round(STOPS[k][c] + (at - k) * (STOPS[k + 1][c] - STOPS[k][c])) : sequential[3 * i + c],
    );
    found[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return found;
}

/**
 * Call `point` with the tile under the pointer or the focus, and with null when there is none.
 * @param {HTMLElement} list
 * @param {(tile: ?HTMLElement) => void} point
 */
export function followTiles(list, point) {
  const tile = (event) => event.target.closest("[role=option]");
  list.addEventListener("pointerover", (event) => point(tile(event)));
  list.addEventListener("focusin", (event) => tile(event)?.matches(":focus-visible") && point(tile(event)));
  for (const name of ["pointerleave", "focusout"]) list.addEventListener(name, () => point(null));
}

export class Tiles {
  /** Remove all tiles; `range` is their shared range, [low, high]. */
  reset({ cell, range, signed }) {
    this.h = cell[0];
    this.w = cell[1];
    this.shared = range;
    this.signed = signed;
    this.planes = new Map();
    this.table = colors(signed);
  }

  makeCanvas() {
    return make("canvas", { class: "hl-channels-tile", width: this.w, height: this.h, "aria-hidden": "true" });
  }

  add(value) {
    const planes = bytes(value.planes),
      lo = floats(value.lo),
      hi = floats(value.hi),
      size = this.h * this.w;
    value.numbers.forEach((number, k) =>
      this.planes.set(number, { lo: lo[k], hi: hi[k], values: planes.subarray(k * size, (k + 1) * size) }),
    );
  }

  has(number) {
    return this.planes.has(number);
  }

  /** Return the color range of a tile. */
  range(plane, shared) {
    if (shared) return this.shared;
    const end = (this.signed ? Math.max(Math.abs(plane.lo), Math.abs(plane.hi)) : plane.hi) || 1;
    return [this.signed ? -end : 0, end];
  }

  /** Draw one pixel per cell. */
  draw(canvas, number, shared) {
    const plane = this.planes.get(number),
      [low, high] = this.range(plane, shared);
    if (canvas.width !== this.w || canvas.height !== this.h) [canvas.width, canvas.height] = [this.w, this.h];
    const context = canvas.getContext("2d", { willReadFrequently: true }),
      image = context.createImageData(this.w, this.h);
    const pixels = new Uint32Array(image.data.buffer),
      scale = 255 / (high - low),
      step = (plane.hi - plane.lo) / 255 || 0;
    for (let i = 0; i < pixels.length; i++) {
      const k = Math.round((plane.lo + plane.values[i] * step - low) * scale) || 0;
      pixels[i] = this.table[k < 0 ? 0 : k > 255 ? 255 : k];
    }
    context.putImageData(image, 0, 0);
  }

  /** Draw the tile over the image, as the large map is drawn. */
  over(canvas, number, image, { shared, smooth }) {
    const plane = this.planes.get(number),
      step = (plane.hi - plane.lo) / 255 || 0,
      [low, high] = this.range(plane, shared);
    const across = Math.round(canvas.getBoundingClientRect().width * (window.devicePixelRatio || 1)) || FINEST;
    const width = Math.min(2 * FINEST, across),
      height = Math.max(1, Math.round((width * image.naturalHeight) / image.naturalWidth));
    const values = Float32Array.from(plane.values, (v) => plane.lo + v * step);
    const colors = this.signed ? "signed" : "magma",
      rendering = view({ values, h: this.h, w: this.w }, { colors, limits: [low, high], smooth });
    drawOver(canvas, width, height, image, rendering);
  }

  /** Draw all tiles with their numbers as one PNG. */
  async sheet(numbers, title, { shared, smooth }) {
    const across = Math.ceil(Math.sqrt(numbers.length)),
      gap = 6,
      text = 14,
      head = 28;
    const side = Math.max(12, Math.min(112, Math.floor(LARGEST / across) - gap)),
      named = side >= 28;
    const high = Math.max(1, Math.round((side * this.h) / this.w)),
      step = [side + gap, high + gap + (named ? text : 0)];
    const canvas = document.createElement("canvas"),
      small = document.createElement("canvas");
    canvas.width = gap + across * step[0];
    canvas.height = head + gap + Math.ceil(numbers.length / across) * step[1];
    const context = canvas.getContext("2d");
    [context.fillStyle, context.textBaseline] = ["#ffffff", "top"];
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = "#1b1b1f";
    context.font = "14px system-ui, sans-serif";
    context.fillText(title, gap, 8);
    context.font = "11px system-ui, sans-serif";
    context.imageSmoothingEnabled = smooth;
    numbers.forEach((number, k) => {
      const [x, y] = [gap + (k % across) * step[0], head + gap + Math.floor(k / across) * step[1]];
      this.draw(small, number, shared);
      context.drawImage(small, x, y, side, high);
      if (named) context.fillText(number, x, y + high + 1);
    });
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }
}
