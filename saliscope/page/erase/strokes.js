// Points of strokes as text: fractions of the width and height in two digits to base 62, as in
// saliscope/compute/erase/edit.py.
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
  BASE = DIGITS.length,
  FINEST = BASE ** 2 - 1;

/** @typedef {[number, number]} Point x and y from 0 to 1 */

/** Return a number from 0 to 1 as two digits. */
export function encode(part) {
  const step = Math.round(Math.min(1, Math.max(0, part)) * FINEST);
  return DIGITS[Math.floor(step / BASE)] + DIGITS[step % BASE];
}

const decode = (text) => (DIGITS.indexOf(text[0]) * BASE + DIGITS.indexOf(text[1])) / FINEST;

/** @param {Point[]} points */
export const encodePoints = (points) => points.map(([x, y]) => encode(x) + encode(y)).join("");

/** @returns {Point[]} */
function decodePoints(text) {
  const points = [];
  for (let at = 0; at + 4 <= text.length; at += 4)
    points.push([decode(text.slice(at, at + 2)), decode(text.slice(at + 2, at + 4))]);
  return points;
}

/**
 * Return an operation of the region that is drawn by hand, or null for others.
 * @returns {?{kind: "brush" | "box", add: boolean, radius: number, points: Point[]}}
 */
export function decodeShape(token) {
  const [name, ...fields] = token.split("."),
    kind = name.replace(/^un/, "");
  if (kind !== "brush" && kind !== "box") return null;
  const points = decodePoints(fields.at(-1) || "");
  return { kind, add: kind === name, radius: kind === "brush" ? decode(fields[0]) : 0, points };
}

/** Return the distance of a point from a line. */
function distance([x, y], [x0, y0], [x1, y1]) {
  const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
  const along = length ? Math.min(1, Math.max(0, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length)) : 0;
  return Math.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0));
}

/**
 * Return a line with fewer points that is at most `tolerance` away (Douglas and Peucker, 1973).
 * @param {Point[]} points
 * @param {number} tolerance
 */
export function simplify(points, tolerance) {
  const kept = new Set([0, points.length - 1]),
    open = [[0, points.length - 1]];
  while (open.length) {
    const [first, last] = open.pop();
    let farthest = first,
      most = tolerance;
    for (let k = first + 1; k < last; k++) {
      const away = distance(points[k], points[first], points[last]);
      if (away > most) [farthest, most] = [k, away];
    }
    if (farthest === first) continue;
    kept.add(farthest);
    open.push([first, farthest], [farthest, last]);
  }
  return points.filter((_, k) => kept.has(k));
}
