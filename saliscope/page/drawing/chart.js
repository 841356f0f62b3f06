// Small SVG charts: lines and bars with a read-out by pointer and arrow keys, and a heat map on a canvas.
import { stay } from "./cells.js";
import { table } from "./colors.js";
import { svg } from "./graph.js";
import { roundTicks } from "./ticks.js";
import { make, formatValue, setAttributes } from "../wire.js";

const HEIGHT = 190,
  LEFT = 58,
  RIGHT = 12,
  TOP = 10,
  BOTTOM = 24;

/** @typedef {HTMLElement & Record<string, any>} Host an element that keeps what its chart consists of */

/**
 * Return the color of layer k of `count`. Lightness is set in lab.css, with a contrast of at least 3:1 in both themes.
 */
function hue(k, count) {
  return `oklch(var(--hl-line-${k % 2 ? "odd" : "even"}) 0.14 ${Math.round(282 - (252 * k) / Math.max(1, count - 1))})`;
}

/**
 * Check whether values need a logarithmic axis: all are positive and span more than two decades.
 * @param {(number | null)[]} values
 * @returns {boolean}
 */
export function decades(values) {
  const known = values.filter((v) => v !== null && Number.isFinite(v));
  return known.length > 0 && known.every((v) => v > 0) && Math.max(...known) > 100 * Math.min(...known);
}

/** Return a linear or logarithmic axis: `at` maps a value to [0, 1] or null; `ticks` are its ticks. */
function scale(values, log) {
  const known = values.filter((v) => v !== null && Number.isFinite(v) && (!log || v > 0));
  let low = Math.min(...known),
    high = Math.max(...known);
  if (!known.length) [low, high] = log ? [0.1, 1] : [0, 1];
  if (log) {
    low = 10 ** Math.floor(Math.log10(low) + 1e-9);
    high = 10 ** Math.ceil(Math.log10(high) - 1e-9);
    if (low === high) high *= 10;
    const from = Math.log10(low),
      to = Math.log10(high),
      every = Math.max(1, Math.ceil((to - from) / 5)),
      ticks = [];
    for (let e = Math.round(from); e <= to + 1e-6; e += every) ticks.push(10 ** e);
    return { at: (v) => (v > 0 && Number.isFinite(v) ? (Math.log10(v) - from) / (to - from) : null), ticks };
  }
  low = Math.min(0, low);
  if (low === high) high = low + 1;
  const ticks = roundTicks(low, high, 4).map(({ value }) => value);
  return { at: (v) => (v !== null && Number.isFinite(v) ? (v - low) / (high - low) : null), ticks };
}

function frame(host, chart) {
  if (!host.plot) {
    // created once, to keep the focus while values arrive
    const plot = make("div", { class: "hl-plot", tabindex: 0, role: "img" });
    const read = make("output", { class: "hl-quiet", "aria-live": "polite" });
    host.plot = plot;
    host.names = make("div", { class: "hl-legend" });
    host.replaceChildren(make("h2", { class: "hl-title", text: chart.title }), plot, host.names, read);
    const show = (at) => {
      host.at = at;
      read.textContent = host.chart.read(at);
      host.mark(at);
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.firstElementChild.getBoundingClientRect(),
        count = host.chart.count;
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      if (count) show(stay(host.chart.bars ? Math.floor(share * count) : Math.round(share * (count - 1)), count));
    });
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      if (!step || !host.chart.count) return;
      event.preventDefault();
      show(stay((host.at ?? -1) + step, host.chart.count));
    });
  }
  host.chart = chart;
  host.firstElementChild.textContent = chart.title;
  const summary = chart.summary ?? (chart.count ? chart.read(chart.count - 1) : "");
  host.plot.setAttribute("aria-label", `${chart.title}. ${summary}`);
  const width = Math.max(280, Math.floor(host.plot.clientWidth || 360));
  return {
    inner: width - LEFT - RIGHT,
    tall: HEIGHT - TOP - BOTTOM,
    root: svg("svg", { width, height: chart.height || HEIGHT, "aria-hidden": "true" }),
  };
}

function grid(root, axis, inner, tall) {
  for (const tick of axis.ticks) {
    const y = TOP + (1 - axis.at(tick)) * tall;
    root.append(
      svg("line", { x1: LEFT, x2: LEFT + inner, y1: y, y2: y, class: "hl-grid-line" }),
      svg("text", {
        x: LEFT - 6,
        y: y + 4,
        "text-anchor": "end",
        class: "hl-faint",
        text: formatValue(tick)
          .replace("e+", "e")
          .replace(/\.?0*e/, "e"),
      }),
    );
  }
}

/** Write the first and the last step below the axis. */
function drawEnds(root, inner, end) {
  const attributes = { y: HEIGHT - 6, class: "hl-faint" };
  root.append(
    svg("text", { ...attributes, x: LEFT, text: "0" }),
    svg("text", { ...attributes, x: LEFT + inner, "text-anchor": "end", text: end }),
  );
}

/** Add the line at the step that is read; returns what moves it to a step. */
function addCursor(root, tall, x) {
  const cursor = svg("line", { y1: TOP, y2: TOP + tall, class: "hl-cursor", visibility: "hidden" });
  root.append(cursor);
  return (k) => setAttributes(cursor, { visibility: "visible", x1: x(k), x2: x(k) });
}

function legend(host, names, color, mark) {
  host.names.replaceChildren(
    ...names.map((name) => {
      const dot = make("i");
      dot.style.background = color(name);
      return make("span", {}, dot, mark(name));
    }),
  );
}

/**
 * Draw lines over steps.
 * @param {Host} host
 * @param {object} chart
 * @param {string} chart.title
 * @param {number[]} chart.at the recorded steps
 * @param {number} chart.last the last step of the axis
 * @param {Record<string, (number | null)[]>} chart.series values by name; null for NaN
 * @param {boolean} chart.log whether the axis is logarithmic
 * @param {string} chart.unit name of a step
 */
export function lines(host, { title, at, last, series, log, unit }) {
  const names = Object.keys(series),
    values = names.flatMap((name) => series[name]),
    axis = scale(values, log);
  const read = (k) =>
    `${unit} ${at[k]}: ` +
    names.map((name) => `${names.length > 1 ? name + " " : ""}${formatValue(series[name][k] ?? NaN)}`).join(" · ");
  const { root, inner, tall } = frame(host, { title, count: at.length, read });
  const x = (step) => LEFT + (inner * step) / Math.max(1, last),
    color = (name) => hue(names.indexOf(name), names.length);
  grid(root, axis, inner, tall);
  drawEnds(root, inner, `${unit} ${last}`);
  for (const name of names) {
    const shares = series[name].map(axis.at); // a line starts again after values that cannot be drawn
    const path = shares.map((share, k) => {
      const start = typeof shares[k - 1] === "number" ? "L" : "M";
      return share === null ? "" : `${start}${x(at[k]).toFixed(1)} ${(TOP + (1 - share) * tall).toFixed(1)}`;
    });
    root.append(svg("path", { d: path.join("") || "M0 0", class: "hl-curve", style: `stroke: ${color(name)}` }));
  }
  host.mark = addCursor(root, tall, (k) => x(at[k]));
  host.plot.replaceChildren(root);
  // Zeros of a frozen layer cannot be drawn on a log scale.
  const zero = (name) => log && series[name].length && series[name].every((v) => v === 0);
  legend(host, names.length > 1 ? names : [], color, (name) => (zero(name) ? `${name}: 0` : name));
}

/**
 * Draw bars on a log scale.
 * @param {Host} host
 * @param {object} chart
 * @param {string} chart.title
 * @param {(number | null)[]} chart.values
 * @param {string[]} chart.names
 * @param {string[]} chart.marks texts below the bars; empty for most
 * @param {(k: number) => string} chart.read describes a bar
 * @param {string} chart.summary
 * @param {number} chart.least smaller values get a dashed bar
 */
export function bars(host, { title, values, names, marks, read, summary, least }) {
  const axis = scale(values, true);
  const shown = frame(host, {
    title,
    count: values.length,
    read,
    bars: true,
    summary,
    height: HEIGHT + Math.min(140, Math.max(...marks.map((m) => m.length)) * 7.5),
  });
  const wide = Math.max(shown.inner, values.length),
    root = shown.root;
  root.setAttribute("width", wide + LEFT + RIGHT);
  grid(root, axis, wide, shown.tall);
  const each = wide / values.length,
    foot = TOP + shown.tall;
  const cursor = svg("rect", { y: TOP, height: shown.tall, width: each, class: "hl-cursor-bar", visibility: "hidden" });
  root.append(cursor);
  values.forEach((value, k) => {
    const share = axis.at(value),
      dead = share === null || value < least,
      x = LEFT + k * each;
    const height = dead ? shown.tall : Math.max(2, share * shown.tall);
    root.append(
      svg("rect", {
        x: x + each * 0.12,
        width: each * 0.76,
        y: foot - height,
        height,
        "data-layer": names[k],
        class: dead ? "hl-bar-dead" : marks[k] ? "hl-bar-stage" : "hl-bar-plain",
      }),
    );
    if (marks[k])
      root.append(
        svg("text", {
          transform: `translate(${x + each / 2 + 4} ${foot + 8}) rotate(90)`,
          class: "hl-faint",
          text: marks[k],
        }),
      );
  });
  host.mark = (k) => setAttributes(cursor, { visibility: "visible", x: LEFT + k * each });
  host.plot.replaceChildren(root);
}

/**
 * Draw histograms over time, one column per step, each with its own range; brighter means larger counts.
 * @param {Host} host
 * @param {object} chart
 * @param {string} chart.title
 * @param {Uint8Array} chart.counts `bins` counts per step, scaled to 255
 * @param {number} chart.bins
 * @param {number[]} chart.low lower end of the range of each step
 * @param {number[]} chart.high
 * @param {number[]} chart.at the recorded steps
 * @param {number} chart.last the last step of the axis
 * @param {string} chart.unit name of a step
 */
export function heat(host, { title, counts, bins, low, high, at, last, unit }) {
  // The axis ends at the 90th percentile of the ranges, so that a few large ones do not flatten the others.
  const ends = low.map((v, k) => Math.max(Math.abs(v), Math.abs(high[k]))).sort((a, b) => a - b);
  const most = ends[Math.floor(0.9 * (ends.length - 1))] || ends.at(-1) || 1,
    reach = Number(most.toPrecision(1)) || 1,
    axis = { at: (v) => (v + reach) / (2 * reach), ticks: [-reach, 0, reach] };
  const read = (k) => `${unit} ${at[k]}: ${formatValue(low[k])} … ${formatValue(high[k])}`;
  const { root, inner, tall } = frame(host, { title, count: at.length, read });
  const canvas = host.sheet || make("canvas", { class: "hl-heat", "aria-hidden": "true" });
  host.sheet = canvas;
  canvas.width = inner;
  canvas.height = tall;
  const context = canvas.getContext("2d"),
    color = table("magma");
  context.fillStyle = `rgb(${color.subarray(0, 3)})`;
  context.fillRect(0, 0, inner, tall);
  at.forEach((step, k) => {
    const left = (inner * step) / (last + 1),
      right = (inner * (at[k + 1] ?? Math.min(last + 1, step + (at[1] ?? 1) - (at[0] ?? 0)))) / (last + 1);
    for (let b = 0; b < bins; b++) {
      const count = counts[k * bins + b];
      if (!count) continue;
      const down = axis.at(low[k] + ((high[k] - low[k]) * b) / bins),
        up = axis.at(low[k] + ((high[k] - low[k]) * (b + 1)) / bins),
        c = 3 * count;
      context.fillStyle = `rgb(${color[c]}, ${color[c + 1]}, ${color[c + 2]})`;
      const y = Math.floor((1 - up) * tall);
      context.fillRect(
        Math.floor(left),
        y,
        Math.max(1, Math.ceil(right - left)),
        Math.max(1, Math.ceil((1 - down) * tall) - y),
      );
    }
  });
  grid(root, axis, inner, tall);
  drawEnds(root, inner, `${unit} ${last}`);
  host.mark = addCursor(root, tall, (k) => LEFT + (inner * at[k]) / Math.max(1, last));
  const stack = make("div", { class: "hl-stack" }, canvas, root);
  canvas.style.cssText = `left: ${LEFT}px; top: ${TOP}px`;
  host.plot.replaceChildren(stack);
}
