// Compare two maps: a common grid, their difference, and Spearman's rank correlation. No DOM elements.
import { stay } from "../drawing/cells.js";
import { enlarge } from "../drawing/field.js";

const WHOLE = [0, 0, 1, 1];
const isClose = (a, b) => Math.abs(a - b) < 1e-6;

/** Return the intersection of both boxes, or null. */
function intersection(a, b) {
  const box = [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
  return box[2] - box[0] > 1e-6 && box[3] - box[1] > 1e-6 ? box : null;
}

/** Interpolate the map linearly between cell centers at a relative position. */
function interpolate({ values, h, w }, x, y) {
  const u = stay(x * w - 0.5, w),
    v = stay(y * h - 0.5, h);
  const left = Math.floor(u),
    top = Math.floor(v),
    right = stay(left + 1, w),
    bottom = stay(top + 1, h);
  const row = (k) =>
    u === left
      ? values[k * w + left]
      : values[k * w + left] + (u - left) * (values[k * w + right] - values[k * w + left]);
  return v === top ? row(top) : row(top) + (v - top) * (row(bottom) - row(top));
}

/**
 * Resample two maps to one grid with the smaller cells: {a, b, h, w, box}. A map that already has this grid keeps its
 * values. `box` is the part of the image that both show; returns null if there is none.
 */
export function align(first, second) {
  const of = (map) => map.box || WHOLE,
    box = intersection(of(first), of(second));
  if (!box) return null;
  const cells = (side) =>
    Math.max(
      ...[first, second].map((map) => {
        const [low, high] = [of(map)[side], of(map)[side + 2]];
        return Math.round(((box[side + 2] - box[side]) / (high - low)) * (side ? map.h : map.w));
      }),
      1,
    );
  const [w, h] = [cells(0), cells(1)];
  const onto = (map) => {
    const [left, top, right, bottom] = of(map);
    if (box.every((edge, k) => isClose(edge, of(map)[k])))
      return map.w === w && map.h === h ? map.values : enlarge(map, w, h);
    return Float32Array.from({ length: w * h }, (_, i) => {
      const x = box[0] + (((i % w) + 0.5) / w) * (box[2] - box[0]),
        y = box[1] + ((Math.floor(i / w) + 0.5) / h) * (box[3] - box[1]);
      return interpolate(map, (x - left) / (right - left), (y - top) / (bottom - top));
    });
  };
  return { a: onto(first), b: onto(second), h, w, box };
}

/** Return the largest magnitude of the finite values. */
export function maxMagnitude(values) {
  return values.reduce((most, v) => (Number.isFinite(v) ? Math.max(most, Math.abs(v)) : most), 0);
}

/** Return a − b, each divided by its own largest magnitude if `scaled`. NaN if either value is not finite. */
export function difference({ a, b }, scaled) {
  const [p, q] = scaled ? [maxMagnitude(a) || 1, maxMagnitude(b) || 1] : [1, 1];
  return Float32Array.from(a, (v, i) => (Number.isFinite(v) && Number.isFinite(b[i]) ? v / p - b[i] / q : NaN));
}

/** Return ranks from 1; ties get their mean rank. */
function ranks(values) {
  const found = new Float64Array(values.length),
    order = Array.from(values.keys()).sort((a, b) => values[a] - values[b]);
  for (let from = 0, to = 0; from < order.length; from = to) {
    while (to < order.length && values[order[to]] === values[order[from]]) to++;
    for (const k of order.slice(from, to)) found[k] = (from + to + 1) / 2;
  }
  return found;
}

/** Spearman's rank correlation over cells that are finite in both: {rho, cells, constant}; rho is null if undefined. */
export function spearman({ a, b }) {
  const both = Array.from(a.keys()).filter((i) => Number.isFinite(a[i]) && Number.isFinite(b[i]));
  const cells = both.length;
  if (cells < 2) return { rho: null, cells, constant: 0 };
  const [p, q] = [a, b].map((values) => ranks(Float64Array.from(both, (i) => values[i])));
  const mean = (cells + 1) / 2,
    covary = (u, v) => u.reduce((sum, rank, i) => sum + (rank - mean) * (v[i] - mean), 0),
    [across, down, product] = [covary(p, p), covary(q, q), covary(p, q)];
  const constant = Number(across === 0) + Number(down === 0);
  return { rho: constant ? null : Math.max(-1, Math.min(1, product / Math.sqrt(across * down))), cells, constant };
}
