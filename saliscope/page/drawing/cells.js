// Moving between the cells of a map with the arrow keys.

/** Steps of the arrow keys: rows and columns. */
export const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Return the position inside `cells` that is closest to `value`. */
export const stay = (value, cells) => Math.min(cells - 1, Math.max(0, value));
