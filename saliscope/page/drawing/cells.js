// Moving between the cells of a map with the pointer and the arrow keys.
import { peak } from "./field.js";

/** Steps of the arrow keys: rows and columns. */
export const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Return the position inside `cells` that is closest to `value`. */
export const stay = (value, cells) => Math.min(cells - 1, Math.max(0, value));

/** Return the cell [row, column] of a map at a relative position. */
export const cellAt = (x, y, { h, w }) => [stay(Math.floor(y * h), h), stay(Math.floor(x * w), w)];

/** Return the center of a cell as a relative position. */
export const centerOf = (row, column, { h, w }) => [(column + 0.5) / w, (row + 0.5) / h];

/**
 * Return the relative position of a pointer in an element.
 * @param {Element} element
 * @param {MouseEvent} event
 * @returns {[number, number]}
 */
export function positionIn(element, { clientX, clientY }) {
  const { left, top, width, height } = element.getBoundingClientRect();
  return [(clientX - left) / width, (clientY - top) / height];
}

/**
 * Follow the pointer and the arrow keys over a map; with Shift, keys move by a sixteenth of the map.
 * @param {HTMLCanvasElement} canvas
 * @param {object} on
 * @param {() => any} on.map the map that is shown, or null
 * @param {() => any} on.cell the marked cell (row, column), from which keys move
 * @param {(x: number, y: number) => void} on.over called with the relative position of the pointer
 * @param {(row: number, column: number) => void} on.mark called with the cell of the keys
 * @param {(map: any) => any} [on.start] returns the first cell, by default the one with the largest value
 * @param {() => void} on.leave called when neither the pointer nor the focus is on the map
 */
export function followCells(canvas, { map, cell, over, mark, leave, start = peak }) {
  canvas.addEventListener("pointermove", (event) => over(...positionIn(canvas, event)));
  canvas.addEventListener("pointerdown", (event) => over(...positionIn(canvas, event)));
  canvas.addEventListener("pointerleave", ({ pointerType }) => {
    if (document.activeElement !== canvas && pointerType !== "touch") leave();
  });
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("focus", () => {
    if (!map() || cell() || !canvas.matches(":focus-visible")) return;
    const [row, column] = start(map());
    mark(row, column);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = STEPS[event.key],
      found = map();
    if (!step || !found || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // notebooks move to another cell
    const [row, column] = cell() || start(found),
      far = event.shiftKey ? Math.max(1, Math.round(found.w / 16)) : 1;
    mark(stay(row + far * step[0], found.h), stay(column + far * step[1], found.w));
  });
}
