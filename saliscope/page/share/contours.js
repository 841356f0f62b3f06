// Contours of a map as lines, for figures with vector graphics. The levels are those of drawing/paint.js.
import { RULE } from "../drawing/constants.js";
import { enlarge } from "../drawing/field.js";

const SIDE = 240; // samples along the longer side

/** @typedef {[number, number][]} Line points from 0 to 1, from the upper left corner; closed if both ends are equal */

/** Return the crossed sides of each square, as pairs: 0 above, 1 right, 2 below, 3 left. */
function sidesOf(corners, level) {
  const [a, b, c, d] = corners.map((value) => value >= level), // clockwise from the upper left
    crossed = [a !== b, b !== c, c !== d, d !== a].flatMap((is, side) => (is ? [side] : []));
  if (crossed.length < 4) return crossed.length ? [crossed] : [];
  const isHigh = corners.reduce((sum, value) => sum + value) / 4 >= level; // a saddle
  const sides = isHigh === a ? [0, 1, 2, 3] : [3, 0, 1, 2];
  return [sides.slice(0, 2), sides.slice(2)];
}

/** Join pairs of points that lie on the same sides of squares to lines. */
function join(pairs) {
  const next = new Map(),
    link = (one, other) => next.set(one, [...(next.get(one) || []), other]);
  for (const [from, to] of pairs) {
    link(from, to);
    link(to, from);
  }
  const lines = [],
    ends = [...next].filter(([, others]) => others.length === 1).map(([id]) => id);
  for (const start of [...ends, ...next.keys()]) {
    const line = [start];
    for (let at = start, to; (to = next.get(at).pop()) !== undefined; at = to) {
      const back = next.get(to);
      back.splice(back.indexOf(at), 1);
      line.push(to);
    }
    if (line.length > 1) lines.push(line);
  }
  return lines;
}

/**
 * Return the lines at which values cross a level, with linear interpolation between samples.
 * @param {ArrayLike<number>} values row by row
 * @param {number} w
 * @param {number} h
 * @param {number} level
 * @returns {Line[]}
 */
export function isolines(values, w, h, level) {
  const points = new Map(),
    pairs = [];
  const at = (x, y) => (values[y * w + x] === values[y * w + x] ? values[y * w + x] : 0);
  /** Return the id of the point between two samples, and store it. */
  const point = (x, y, u, v) => {
    const id = 2 * (y * w + x) + (u === x ? 1 : 0);
    if (!points.has(id)) {
      const [from, to] = [at(x, y), at(u, v)],
        share = (level - from) / (to - from);
      points.set(id, [(x + 0.5 + share * (u - x)) / w, (y + 0.5 + share * (v - y)) / h]);
    }
    return id;
  };
  for (let y = 0; y < h - 1; y++) {
    for (let x = 0; x < w - 1; x++) {
      const ids = [
        () => point(x, y, x + 1, y),
        () => point(x + 1, y, x + 1, y + 1),
        () => point(x, y + 1, x + 1, y + 1),
        () => point(x, y, x, y + 1),
      ];
      const corners = [at(x, y), at(x + 1, y), at(x + 1, y + 1), at(x, y + 1)];
      for (const [from, to] of sidesOf(corners, level)) pairs.push([ids[from](), ids[to]()]);
    }
  }
  return join(pairs).map((line) => line.map((id) => points.get(id)));
}

/**
 * Return the contours of a rendering, as they are drawn over the image.
 * @param {import("../drawing/paint.js").Rendering} rendering
 * @param {number} ratio height of the image divided by its width
 * @returns {[Line[], Line[]]} around positive and around negative values
 */
export function contourLines(rendering, ratio) {
  if (rendering.fine || rendering.lines === false) return [[], []];
  const { colors, low, high, smooth } = rendering,
    [w, h] = [Math.min(1, 1 / ratio), Math.min(1, ratio)].map((part) => Math.max(2, Math.round(SIDE * part)));
  const shares = enlarge(rendering, w, h, smooth).map((value) =>
    colors === "signed" ? value / high : (value - low) / (high - low),
  );
  const around = (sign) => {
    const sizes = shares.map((share) => sign * share);
    return [RULE.low_line, RULE.high_line].flatMap((level) => isolines(sizes, w, h, level));
  };
  return [around(1), around(-1)];
}
