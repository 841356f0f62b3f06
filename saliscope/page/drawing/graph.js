// The computation graph as SVG, top to bottom: boxes are tensors, edges carry values down and gradients up.
import { make, setAttributes } from "../wire.js";
import { BLUE, RED } from "./constants.js";

const BOX = 44,
  LINE = 17,
  LETTER = 7.6,
  SPACE = "http://www.w3.org/2000/svg";

/**
 * Create an SVG element; `text` is set as text.
 * @param {string} tag
 * @param {Record<string, any>} attributes
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SPACE, tag);
  setAttributes(node, attributes);
  node.append(...children);
  return node;
}

/**
 * Format a number: integers as they are, others with four digits.
 * @param {number | string} given
 * @returns {string}
 */
export function formatNumber(given) {
  const value = Number(given);
  if (Number.isNaN(value)) return "NaN";
  const size = Math.abs(value),
    sign = value < 0 ? "−" : "";
  if (!Number.isFinite(value)) return sign + "∞";
  if (Number.isInteger(value) && size < 1e9) return sign + String(size);
  return sign + (size < 1e-3 || size >= 1e6 ? size.toExponential(1) : String(Number(size.toPrecision(4))));
}

/**
 * Check whether two arrays are equal.
 * @type {(a: any, b: any) => boolean}
 */
export const isEqual = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const flatten = (rows) => (rows || []).flat().map(Number);
const formatRows = (rows) => (rows ? rows.map((row) => row.map(formatNumber).join(", ")).join("; ") : "");

/** Return a color function for all gradients of a graph: blue negative, red positive, opacity by log magnitude. */
function gradientColors(all) {
  const sizes = all
    .flat()
    .map((v) => Math.abs(v))
    .filter((v) => v > 0 && Number.isFinite(v))
    .map(Math.log10);
  const low = Math.min(...sizes),
    high = Math.max(...sizes);
  return (given) => {
    const value = Number(given);
    if (!value) return "transparent";
    if (!Number.isFinite(value)) return "rgba(128, 128, 128, .5)";
    const share = high > low ? (Math.log10(Math.abs(value)) - low) / (high - low) : 0.6;
    return `rgba(${value < 0 ? BLUE : RED}, ${(0.14 + 0.4 * share).toFixed(3)})`;
  };
}

/** Create the label of an edge: value, colored gradient and, if the hook changed it, the original gradient. */
function label(edge, shade, terms) {
  const cells = edge.with || [],
    changed = edge.with && !isEqual(edge.with, edge.without);
  const wide = Math.max(1, ...cells.flat().map((v) => formatNumber(v).length)) * LETTER + 8;
  const value = `→ ${truncate(formatRows(edge.value))}`,
    was = changed ? `${terms.was} ${truncate(formatRows(edge.without))}` : "";
  const columns = cells.length ? cells[0].length : 0,
    numbers = columns <= 4 && cells.length <= 4;
  const cell = numbers ? wide : 12,
    gradient = cells.length ? 16 + columns * cell : 60;
  const width = Math.max(gradient, value.length * LETTER, was.length * LETTER) + 8;
  const height = LINE * (1 + Math.max(1, cells.length) + (changed ? 1 : 0)) + 6;
  const group = svg(
    "g",
    { class: "hl-edge-label" },
    svg("title", {
      text: `${edge.from} → ${edge.to}: ${formatRows(edge.value)}; ← ${formatRows(edge.with) || terms.none}`,
    }),
    svg("rect", { x: -width / 2, y: -height / 2, width, height, rx: 4, class: "hl-paper" }),
    svg("text", { x: 0, y: -height / 2 + 14, "text-anchor": "middle", class: "hl-faint", text: value }),
  );
  const left = -gradient / 2,
    top = -height / 2 + LINE + 2;
  group.append(svg("text", { x: left, y: top + 13, class: "hl-faint", text: cells.length ? "←" : `← ${terms.none}` }));
  cells.forEach((row, r) =>
    row.forEach((entry, c) => {
      const x = left + 16 + c * cell,
        y = top + r * LINE;
      group.append(
        svg("rect", {
          x,
          y,
          width: cell - 1,
          height: LINE - 1,
          rx: 2,
          style: `fill: ${shade(entry)}`,
          class: changed ? "hl-changed" : "hl-cell-edge",
        }),
      );
      if (numbers)
        group.append(svg("text", { x: x + cell / 2, y: y + 13, "text-anchor": "middle", text: formatNumber(entry) }));
    }),
  );
  if (changed)
    group.append(svg("text", { x: 0, y: height / 2 - 5, "text-anchor": "middle", class: "hl-faint", text: was }));
  return { group, width, height };
}

function truncate(text) {
  return text.length > 22 ? text.slice(0, 21) + "…" : text;
}

/** Compute a layered layout: row and column of every tensor; an edge over several rows reserves a column in each. */
function computeLayout(value) {
  const depth = new Map(),
    slots = [];
  for (const tensor of value.tensors) {
    const before = value.edges.filter((edge) => edge.to === tensor.name).map((edge) => depth.get(edge.from) + 1);
    depth.set(tensor.name, Math.max(0, ...before));
  }
  // Put a leaf directly above its first use.
  for (const tensor of value.tensors.filter((t) => t.leaf)) {
    const uses = value.edges.filter((edge) => edge.from === tensor.name).map((edge) => depth.get(edge.to) - 1);
    if (uses.length) depth.set(tensor.name, Math.min(...uses));
  }
  const put = (layer, name, wish) => (slots[layer] ||= []).push({ name, wish });
  for (const tensor of value.tensors) put(depth.get(tensor.name), tensor.name);
  value.edges.forEach((edge, k) => {
    for (let layer = depth.get(edge.from) + 1; layer < depth.get(edge.to); layer++)
      put(layer, `${k}/${layer}`, edge.from);
  });
  const column = new Map();
  slots.forEach((layer, at) => {
    const wish = (slot) => {
      const from = slot.wish
        ? [slot.wish]
        : value.edges.filter((edge) => edge.to === slot.name).map((edge) => edge.from);
      const known = from.map((name) => column.get(name)).filter((x) => x !== undefined);
      return known.length
        ? known.reduce((a, b) => a + b, 0) / known.length
        : layer.indexOf(slot) - (layer.length - 1) / 2;
    };
    const order = layer.map((slot) => [wish(slot), slot]).sort((a, b) => a[0] - b[0]);
    order.forEach(([, slot], k) => column.set(slot.name, k - (order.length - 1) / 2));
    slots[at] = order.map(([, slot]) => slot);
  });
  return { depth, column, layers: slots.length, columns: Math.max(...slots.map((layer) => layer.length)) };
}

function overlaps(a, b) {
  return Math.abs(a.x - b.x) < (a.width + b.width) / 2 + 4 && Math.abs(a.y - b.y) < (a.height + b.height) / 2 + 2;
}

/** Compute positions; labels avoid each other along their edges, in gaps `stretch` times as high. */
function arrange(value, { depth, column, layers, columns }, labels, { wide, box, highest }, stretch) {
  const tops = [4];
  for (let layer = 0; layer + 1 < layers; layer++) {
    const crowd = value.edges.filter((edge) => depth.get(edge.from) === layer).length;
    tops.push(
      tops[layer] + BOX + (crowd > 2 ? stretch * highest * 3.3 : crowd > 1 ? stretch * (highest + 48) : highest + 22),
    );
  }
  const width = columns * wide + 24;
  const x = (name) => width / 2 + (column.get(name) || 0) * wide,
    y = (name) => tops[depth.get(name)];
  const occupied = value.tensors.map((t) => ({ x: x(t.name), y: y(t.name) + BOX / 2, width: box, height: BOX }));
  const pairs = new Map();
  let clashes = 0;
  const routes = value.edges.map((edge, k) => {
    const pair = `${edge.from} ${edge.to}`,
      twin = pairs.get(pair) || 0,
      size = { width: labels[k].width, height: labels[k].height };
    pairs.set(pair, twin + 1);
    const doubled = value.edges.filter((other) => other.from === edge.from && other.to === edge.to).length > 1;
    const bend = doubled ? (twin ? 1 : -1) * (size.width / 2 + 6) : 0;
    const from = [x(edge.from) + bend / 3, y(edge.from) + BOX],
      to = [x(edge.to) + bend / 3, y(edge.to)],
      free = [];
    for (let layer = depth.get(edge.from) + 1; layer < depth.get(edge.to); layer++) {
      free.push([x(`${k}/${layer}`), tops[layer] + BOX / 2]);
    }
    const end = free[0] || to;
    const on = (share) => ({
      x: from[0] + share * (end[0] - from[0]) + bend,
      y: from[1] + share * (end[1] - from[1]),
      ...size,
    });
    const crowd = (at) => occupied.filter((other) => overlaps(at, other)).length;
    const at = [0.5, 0.2, 0.8, 0.35, 0.65, 0.28, 0.72, 0.14, 0.86]
      .map(on)
      .reduce((best, other) => (crowd(other) < crowd(best) ? other : best));
    clashes += crowd(at);
    occupied.push(at);
    return { at, points: doubled ? [from, [at.x, at.y], to] : [from, ...free, to] };
  });
  return { tops, width, x, y, occupied, routes, clashes };
}

/** Arrange with the smallest gaps in which no labels overlap, or with the fewest overlaps. */
function arrangeBest(value, labels) {
  const widest = Math.max(...labels.map((l) => l.width), 96),
    highest = Math.max(...labels.map((l) => l.height), 30);
  const wide = Math.min(Math.max(widest + 28, 150), 230),
    box = Math.min(wide - 12, 170);
  const layout = computeLayout(value);
  let best = null;
  for (const stretch of [1, 1.35, 1.8, 2.4]) {
    const attempt = arrange(value, layout, labels, { wide, box, highest }, stretch);
    if (!best || attempt.clashes < best.clashes) best = attempt;
    if (!attempt.clashes) break;
  }
  return { ...best, box };
}

function drawTensor(tensor, x, y, box, terms) {
  const text = tensor.text.length > 20 ? tensor.text.slice(0, 19) + "…" : tensor.text,
    name = tensor.hooked ? `${tensor.name} · ${terms.hooked}` : tensor.name;
  return svg(
    "g",
    {
      transform: `translate(${x} ${y})`,
      class: tensor.hooked ? "hl-box hl-hooked" : tensor.leaf ? "hl-box hl-leaf" : "hl-box",
    },
    svg("title", { text: `${tensor.name} = ${tensor.text}` }),
    svg("rect", { x: -box / 2, y: 0, width: box, height: BOX, rx: 6 }),
    svg("text", { x: 0, y: 18, "text-anchor": "middle", class: "hl-bold", text: name }),
    svg("text", { x: 0, y: 36, "text-anchor": "middle", class: "hl-faint", text }),
  );
}

/**
 * Draw a graph with its values and gradients.
 * @param {HTMLElement} host
 * @param {Record<string, any>} value an outcome of the gradient lab
 * @param {Record<string, any>} terms
 * @returns {(gradient: number) => string} the color of a gradient
 */
export function draw(host, value, terms) {
  const tensors = value.tensors.map((t) => ({ with: t.hooked_gradient, without: t.without }));
  const gradients = [...value.edges, ...tensors].flatMap((each) => [each.with, each.without].map(flatten)),
    shade = gradientColors(gradients);
  const { name, seed } = value.result;
  const labels = value.edges.map((edge) => label(edge, shade, terms)),
    end = { from: name, to: "backward", value: value.tensors.at(-1).value, with: seed, without: seed },
    last = label(end, shade, terms);
  const { tops, width, x, y, occupied, routes, box } = arrangeBest(value, labels);
  const lines = svg("g"),
    notes = svg("g"),
    boxes = svg("g");
  routes.forEach(({ at, points }, k) => {
    const kind = value.edges[k].with ? "hl-edge" : "hl-edge hl-dead";
    lines.append(svg("polyline", { points: points.map((p) => p.join(",")).join(" "), class: kind }));
    labels[k].group.setAttribute("transform", `translate(${at.x} ${at.y})`);
    notes.append(labels[k].group);
  });
  const foot = [x(name), y(name) + BOX];
  lines.append(svg("polyline", { points: `${foot.join(",")} ${foot[0]},${foot[1] + 22}`, class: "hl-edge" }));
  last.group.setAttribute("transform", `translate(${foot[0]} ${foot[1] + 24 + last.height / 2})`);
  notes.append(last.group);
  for (const tensor of value.tensors) boxes.append(drawTensor(tensor, x(tensor.name), y(tensor.name), box, terms));
  occupied.push({ x: foot[0], width: last.width });
  const left = Math.min(0, ...occupied.map((each) => each.x - each.width / 2 - 4)),
    right = Math.max(width, ...occupied.map((each) => each.x + each.width / 2 + 4));
  const height = Math.max(tops.at(-1), y(name)) + BOX + last.height + 30; // labels may extend beyond it
  const size = { viewBox: `${left} 0 ${right - left} ${height}`, width: right - left, height };
  const root = svg("svg", { ...size, role: "img", "aria-label": terms.graph }, lines, notes, boxes);
  host.replaceChildren(
    make("div", { class: "hl-graph-frame", tabindex: 0, "aria-label": terms.graph, role: "group" }, root),
  );
  return shade;
}
