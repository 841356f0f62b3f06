// A curve of a score over the fraction of pixels deleted or inserted, with the controls' curves in gray behind it, as
// SVG with a slider over its steps.
import { svg } from "../drawing/graph.js";
import { roundUp } from "../drawing/ticks.js";
import { make, setAttributes } from "../wire.js";

const HEIGHT = 168,
  LEFT = 38,
  RIGHT = 12,
  TOP = 8,
  BOTTOM = 34,
  LINE = 14,
  LETTER = 6.6;
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -5, PageUp: 5 };
const DASHES = { random: "", edge: "5 3", center: "1.5 3" };

function range(all, unit) {
  const low = Math.min(0, ...all),
    high = Math.max(...all);
  if (unit === "probability" || unit === "score") return [0, Math.min(1, roundUp(Math.max(high, 1e-6)))];
  return [low < 0 ? -roundUp(-low) : 0, high > 0 ? roundUp(high) : 0.1];
}

const tick = (value, unit) =>
  unit === "probability" || unit === "score"
    ? `${Number((100 * value).toPrecision(2))}%`
    : String(Number(value.toPrecision(2)));

/** Place each line's name next to its own line, away from the other lines and from names already placed. */
function placeNames(lines, x, y, count) {
  const placed = [];
  const clearance = (at, down, wide, line) => {
    let least = Infinity;
    for (const other of lines) {
      for (let k = 0; k <= count; k++) {
        const aside = Math.max(0, Math.abs(x(k) - at) - wide / 2),
          away = Math.hypot(aside, y(other.values[k]) - down);
        least = Math.min(least, other === line ? Math.max(away, 0) + (away < LINE / 2 ? 0 : 1e3) : away);
      }
    }
    for (const other of placed)
      if (Math.abs(other.x - at) < (other.wide + wide) / 2 + 4)
        least = Math.min(least, Math.abs(other.y - down) - LINE / 2);
    return least;
  };
  for (const line of lines) {
    const wide = LETTER * line.name.length;
    let best = null;
    for (let k = 1; k < count; k++) {
      for (const offset of [-LINE * 0.8, LINE * 0.8]) {
        const at = Math.min(x(count) - wide / 2, Math.max(x(0) + wide / 2, x(k))),
          down = y(line.values[k]) + offset;
        if (down < y.top + 4 || down > y.foot - 4) continue;
        const score = Math.min(3 * LINE, clearance(at, down, wide, line));
        if (!best || score > best.score) best = { score, x: at, y: down, wide };
      }
    }
    if (best) placed.push({ ...best, line });
  }
  return placed;
}

/**
 * Draw into `host`.
 * @param {import("../drawing/chart.js").Host} host
 * @param {object} chart
 * @param {number[]} chart.own curve of the map
 * @param {Record<string, number[]>} chart.controls curves of the controls
 * @param {Record<string, string>} chart.labels names of the curves
 * @param {string} chart.unit
 * @param {string} chart.axis text below the axis
 * @param {string} chart.title
 * @param {string} chart.area text after the title
 * @param {string} chart.areas text after that, in gray
 * @param {string} chart.description
 * @param {(step: number) => string} chart.read describes a step
 * @param {number[][]} [chart.band] lower and upper ends of the curves of random maps
 * @param {(step: number | null) => void} chart.onStep called with the step under the pointer; null when it leaves
 */
export function curve(host, chart) {
  if (!host.plot) build(host);
  const { own, controls } = chart,
    count = own.length - 1;
  const width = Math.max(240, Math.floor(host.clientWidth || 320)),
    inner = width - LEFT - RIGHT,
    tall = HEIGHT - TOP - BOTTOM;
  const [low, high] = range([...own, ...Object.values(controls).flat(), ...(chart.band || []).flat()], chart.unit);
  const x = (k) => LEFT + (inner * k) / count,
    y = (value) => TOP + (1 - (Math.min(high, Math.max(low, value)) - low) / (high - low)) * tall;
  Object.assign(y, { top: TOP, foot: TOP + tall });
  const root = svg("svg", { width, height: HEIGHT, "aria-hidden": "true" });
  drawAxes(root, chart, { x, y, low, high, count, inner });
  drawCurves(root, chart, x, y);
  const line = svg("line", { y1: TOP, y2: TOP + tall, class: "hl-cursor", visibility: "hidden" });
  const dot = svg("circle", { r: 4, class: "hl-own-dot", visibility: "hidden" });
  root.append(line, dot);
  const mark = (k) => {
    for (const each of [line, dot]) each.setAttribute("visibility", k === null ? "hidden" : "visible");
    if (k === null) return;
    setAttributes(line, { x1: x(k), x2: x(k) });
    setAttributes(dot, { cx: x(k), cy: y(own[k]) });
  };
  const nearest = (at) => Math.min(count, Math.max(0, Math.round(((at - LEFT) / inner) * count)));
  Object.assign(host, { chart, mark, nearest });
  host.heading.replaceChildren(
    make("b", { text: chart.title }),
    ` ${chart.area}`,
    make("span", { class: "hl-quiet", text: ` · ${chart.areas}` }),
  );
  setAttributes(host.plot, { "aria-label": chart.description, "aria-valuemax": count });
  host.plot.replaceChildren(root);
  showStep(host, null);
}

function drawAxes(root, { unit, axis }, { x, y, low, high, count, inner }) {
  const text = (attributes) => svg("text", { class: "hl-faint", ...attributes });
  for (const value of [low, (low + high) / 2, high]) {
    root.append(
      svg("line", { x1: LEFT, x2: LEFT + inner, y1: y(value), y2: y(value), class: "hl-grid-line" }),
      text({ x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", text: tick(value, unit) }),
    );
  }
  ["start", "middle", "end"].forEach((anchor, k) => {
    const at = { x: x((k / 2) * count), y: HEIGHT - BOTTOM + 14 };
    root.append(text({ ...at, "text-anchor": anchor, text: `${50 * k}%` }));
  });
  root.append(text({ x: LEFT + inner / 2, y: HEIGHT - 4, "text-anchor": "middle", text: axis }));
}

/** Draw the range of the random maps, the controls, the map's own curve above them, and the names of all. */
function drawCurves(root, { own, controls, labels, band = [] }, x, y) {
  const path = (values) =>
    values.map((value, k) => `${k ? "L" : "M"}${x(k).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  if (band.length) {
    const [lows, highs] = band,
      back = highs.map((value, k) => [x(k), y(value)]).reverse();
    const outline = [...lows.map((value, k) => [x(k), y(value)]), ...back].map((point) => point.join(" "));
    root.append(svg("path", { d: `M${outline.join("L")}Z`, class: "hl-band" }));
  }
  const drawn = [{ name: labels.own, values: own, own: true }];
  for (const [name, values] of Object.entries(controls)) {
    root.append(
      svg("path", { d: path(values), class: "hl-curve hl-control", "stroke-dasharray": DASHES[name] || null }),
    );
    drawn.push({ name: labels[name], values, own: false });
  }
  root.append(svg("path", { d: path(own), class: "hl-curve hl-own" }));
  for (const label of placeNames(drawn, x, y, own.length - 1)) {
    root.append(
      svg("text", {
        x: label.x,
        y: label.y + 4,
        "text-anchor": "middle",
        class: `hl-line-name ${label.line.own ? "hl-own-name" : "hl-faint"}`,
        text: label.line.name,
      }),
    );
  }
}

function build(host) {
  host.plot = make("div", { class: "hl-plot", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuenow": 0 });
  host.heading = make("p", { class: "hl-trust-name" });
  host.readout = make("p", { class: "hl-quiet hl-trust-read" });
  host.replaceChildren(host.heading, host.plot, host.readout);
  const at = (event) => host.nearest(event.clientX - host.plot.getBoundingClientRect().left);
  const to = (k) => {
    showStep(host, k);
    host.chart.onStep(k);
  };
  host.plot.addEventListener("pointermove", (event) => to(at(event)));
  host.plot.addEventListener("pointerdown", (event) => {
    host.plot.focus({ preventScroll: true });
    to(at(event));
  });
  // After a touch, the step stays until another element is touched.
  host.plot.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") to(null);
  });
  host.plot.addEventListener("blur", () => to(null));
  host.plot.addEventListener("keydown", (event) => {
    const { own } = host.chart,
      step = KEYS[event.key],
      end = { Home: 0, End: own.length - 1, Escape: null }[event.key];
    if (step === undefined && end === undefined) return;
    event.preventDefault();
    to(
      step === undefined
        ? end
        : Math.min(own.length - 1, Math.max(0, (host.at ?? (step > 0 ? -1 : own.length)) + step)),
    );
  });
}

function showStep(host, k) {
  host.at = k;
  host.mark(k);
  host.plot.setAttribute("aria-valuenow", k ?? 0);
  host.plot.setAttribute("aria-valuetext", host.chart.read(k ?? 0));
  host.readout.textContent = k === null ? "" : host.chart.read(k);
}
