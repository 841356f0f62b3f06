// Sizes and positions in the network diagram: width by channels, height by resolution, arcs of skip connections.
import { svg } from "../drawing/graph.js";
import { setAttributes } from "../wire.js";

export const MAP = 48; // pixels of the side of a map
const WIDTHS = [58, 90],
  HEIGHTS = [59, 96]; // pixels of a box, from few to many channels, and from low to full resolution
const CHANNELS = [16, 2048],
  OCTAVES = 5; // the ranges of these scales; larger and smaller values are clamped
const GAPS = [8, 28],
  POINT = 14,
  SCORE = 92; // pixels: between boxes, of a block without a grid, of the class score
const SPREAD = 6; // pixels by which the widths differ where the diagram scrolls
const LIFT = 6,
  LEVEL = 6; // pixels of an arc above the boxes, and above the arc below it

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Return the number of boxes that fit into this width. */
export function roomFor(width, points) {
  const rest = width - WIDTHS[0] - SCORE - points * (POINT + GAPS[0]) - 2 * GAPS[0];
  return Math.floor(rest / (WIDTHS[0] + SPREAD / 2 + GAPS[0]));
}

/** Return the height of a box for an output of this size. */
function heightOf({ height, width }, [inputHeight, inputWidth]) {
  const octaves = Math.log2(Math.sqrt((inputHeight * inputWidth) / (height * width)));
  return Math.round(HEIGHTS[1] - (HEIGHTS[1] - HEIGHTS[0]) * clamp(octaves / OCTAVES, 0, 1));
}

/**
 * Return the width of the gaps, and the sizes of the input, the boxes and the class score, in pixels.
 * @param {Record<string, any>} network
 * @param {import("./folding.js").Item[]} items
 * @param {number} available pixels
 * @returns {{gap: number, sizes: {width: number, height: number}[]}}
 */
export function layout({ blocks, layers, input }, items, available) {
  const outs = items.map(({ last }) => layers[blocks[last].out]);
  const shares = outs.map(({ height, channels }) => {
    const share = Math.log2(Math.max(1, channels) / CHANNELS[0]) / Math.log2(CHANNELS[1] / CHANNELS[0]);
    return height ? clamp(share, 0, 1) : 0;
  });
  const boxes = outs.filter(({ height }) => height).length,
    sum = shares.reduce((total, share) => total + share, 0);
  const fixed = WIDTHS[0] * (boxes + 1) + SCORE + POINT * (outs.length - boxes),
    gaps = outs.length + 1;
  const room = (available - fixed - GAPS[0] * gaps) / (sum || 1),
    spread = room < 0 ? SPREAD : Math.min(room, WIDTHS[1] - WIDTHS[0]);
  const gap = Math.floor(clamp((available - fixed - spread * sum) / gaps, ...GAPS));
  const sizes = outs.map((layer, k) =>
    layer.height
      ? { width: Math.round(WIDTHS[0] + spread * shares[k]), height: heightOf(layer, input) }
      : { width: POINT, height: POINT },
  );
  const ends = [
    { width: WIDTHS[0], height: HEIGHTS[1] },
    { width: SCORE, height: HEIGHTS[0] },
  ];
  return { gap, sizes: [ends[0], ...sizes, ends[1]] };
}

/**
 * Return the arcs around boxes, shorter ones first, without those inside one box. Another arc that starts or ends
 * inside a folded box starts or ends at its top.
 */
function arcsOf(found, items) {
  const at = new Map();
  items.forEach(({ first, last }, k) => {
    for (let block = first; block <= last; block++) at.set(block, k);
  });
  const arcs = new Map();
  for (const [start, end, projected] of found) {
    const [first, last] = [Math.min(items.at(-1).last, Math.floor(start)), Math.max(0, Math.ceil(end) - 1)];
    const a = at.get(first),
      b = at.get(last);
    const inside = [first > items[a].first, last < items[b].last],
      around = a < b || !(inside[0] && inside[1]);
    // the longest one comes first
    if (around && !arcs.has(`${a},${b}`)) arcs.set(`${a},${b}`, { a, b, projected, inside });
  }
  return [...arcs.values()].sort((p, q) => p.b - p.a - (q.b - q.a));
}

/**
 * Place the arcs of the skip connections, shorter ones below longer ones.
 * @param {number[][]} found arcs [start, end, projected] in numbers of blocks
 * @param {import("./folding.js").Item[]} items
 * @param {number[]} tall heights of the boxes
 * @returns {{a: number, b: number, projected: number, inside: boolean[], rise: number}[]} `a`, `b`: the first and last
 *   box; `inside`: whether it starts and ends inside these; `rise`: pixels above the bottom of the boxes
 */
export function placeArcs(found, items, tall) {
  const placed = [];
  for (const arc of arcsOf(found, items)) {
    const { a, b } = arc;
    let rise = Math.max(...tall.slice(a, b + 1)) + LIFT;
    for (const other of placed) if (a <= other.a && other.b <= b) rise = Math.max(rise, other.rise + LEVEL);
    placed.push({ ...arc, rise });
  }
  const most = HEIGHTS[1] + 5 * LEVEL; // many nested arcs share the height
  return placed.map((arc) => ({ ...arc, rise: Math.min(most, arc.rise) }));
}

/**
 * Draw the line from input to output and the arcs.
 * @param {SVGElement} root
 * @param {ReturnType<typeof placeArcs>} arcs
 * @param {[number, number][]} spans left and right side of the input, the boxes and the score
 * @param {number} gap
 * @param {number} bottom pixels from the top to the bottom of the boxes
 */
export function drawArcs(root, arcs, spans, gap, bottom) {
  const width = spans.at(-1)[1],
    line = bottom - MAP / 2 - 6;
  setAttributes(root, { viewBox: `0 0 ${width} ${bottom}`, width, height: bottom });
  root.style.opacity = arcs.length > 60 ? "0.6" : "1"; // keeps dense networks readable
  const middle = ([left, right]) => (left + right) / 2;
  const paths = arcs.map(({ a, b, projected, inside, rise }) => {
    const left = inside[0] ? middle(spans[a + 1]) : spans[a + 1][0] - 0.3 * gap,
      right = inside[1] ? middle(spans[b + 1]) : spans[b + 1][1] + 0.3 * gap,
      top = bottom - rise,
      bend = Math.min(8, (right - left) / 2);
    const d =
      `M${left} ${line}V${top + bend}Q${left} ${top} ${left + bend} ${top}` +
      `H${right - bend}Q${right} ${top} ${right} ${top + bend}V${line}`;
    return svg("path", { d, class: projected ? "hl-rail-projected" : "hl-rail-skip" });
  });
  const straight = svg("path", { d: `M${spans[0][1]} ${line}H${spans.at(-1)[0]}`, class: "hl-rail-line" });
  root.replaceChildren(straight, ...paths);
}

/** Map norms to lengths between 0 and 1, logarithmically, over a factor of at least 4 and at most 10,000. */
export function lengths(norms) {
  const known = norms.filter((norm) => norm > 0);
  const most = Math.max(...known),
    least = Math.max(most / 1e4, Math.min(most / 4, ...known));
  return norms.map((norm) =>
    norm > 0 ? 0.12 + 0.88 * Math.max(0, Math.log(norm / least) / Math.log(most / least)) : norm === 0 ? 0 : null,
  );
}
