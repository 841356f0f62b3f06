// Draws the small map of a class, next to its bar.
import { unpackMap } from "../drawing/field.js";
import { view } from "../drawing/paint.js";
import { drawOver } from "../drawing/surface.js";
import { make } from "../wire.js";

const SIDE = 36; // CSS pixels of the longer side

/** Create the canvas of a class's map; it is drawn once the map arrives. */
export function createSlot(index) {
  return make("canvas", { class: "hl-small", width: 1, height: 1, "data-small": index, "aria-hidden": "true" });
}

/**
 * Draw the maps of the classes whose canvases are in `root`.
 * @param {Element} root
 * @param {number} id the answer that lists these classes
 * @param {?{of: number, items: Record<string, any>[]}} maps
 * @param {?HTMLImageElement} image
 */
export function drawSlots(root, id, maps, image) {
  for (const canvas of root.querySelectorAll("canvas")) {
    const item = maps?.of === id && maps.items.find((each) => String(each.index) === canvas.dataset.small);
    if (!item || canvas.dataset.drawn === String(id)) continue;
    paintSmall(canvas, image, unpackMap(item.map), SIDE);
    canvas.dataset.drawn = String(id);
  }
}

/** Mark the canvases whose maps were refused. */
export function refuseSlots(root) {
  for (const canvas of root.querySelectorAll("canvas[data-small]:not([data-drawn])")) canvas.dataset.drawn = "none";
}

/**
 * Draw an image, and a map over it, with a longer side of `longest` CSS pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {?HTMLImageElement} image
 * @param {?import("../drawing/field.js").Field} field
 * @param {number} longest
 * @param {Parameters<typeof view>[1]} style see `view` in paint.js
 */
export function paintSmall(canvas, image, field, longest, style = {}) {
  const tall = image?.naturalWidth ? image.naturalHeight / image.naturalWidth : 1,
    side = longest * Math.min(3, window.devicePixelRatio || 1);
  const [width, height] = [1 / tall, tall].map((share) => Math.max(1, Math.round(side * Math.min(1, share))));
  drawOver(canvas, width, height, image, field && { ...view(field, style), lines: false }); // too small for contours
}
