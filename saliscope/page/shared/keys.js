// Keys that move the focus in a list.
import { stay } from "../drawing/cells.js";

/** Steps by key, for `itemOfKey`: in a row, in a column, and to the ends. */
export const ROW = { ArrowLeft: -1, ArrowRight: 1 };
export const COLUMN = { ArrowUp: -1, ArrowDown: 1 };
export const ENDS = { Home: -Infinity, End: Infinity };

/**
 * Return the item to which a key moves the focus from another item of a list, or undefined for other keys.
 * @template {Element} Item
 * @param {KeyboardEvent} event
 * @param {Item[]} items
 * @param {Record<string, number>} steps positions by key
 * @param {boolean} wraps whether the first item follows the last one
 * @returns {Item | undefined}
 */
export function itemOfKey(event, items, steps, wraps = false) {
  const at = items.indexOf(/** @type {Item} */ (document.activeElement)),
    to = at + steps[event.key];
  if (at < 0 || Number.isNaN(to)) return undefined;
  event.preventDefault();
  return wraps && Number.isFinite(to) ? items.at(to % items.length) : items[stay(to, items.length)];
}
