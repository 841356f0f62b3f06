// A curve of a score over the share of pixels deleted or inserted, the controls' curves in grey behind it; in plain SVG,
// with a slider over its steps.
import { svg } from "../drawing/graph.js";
import { make } from "../wire.js";

const HEIGHT = 168, LEFT = 38, RIGHT = 12, TOP = 8, BOTTOM = 34, LINE = 14, LETTER = 6.6;
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -5, PageUp: 5 };
const DASHES = { random: "", edge: "5 3", centre: "1.5 3" };

/** The round number at or above a value. */
function nice(value) {
  const base = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((k) => k * base >= value - 1e-12) * base;
}

function range(all, unit) {
  const low = Math.min(0, ...all), high = Math.max(...all);
  if (unit === "probability" || unit === "score") return [0, Math.min(1, nice(Math.max(high, 1e-6)))];
  return [low < 0 ? -nice(-low) : 0, high > 0 ? nice(high) : 0.1];
}

const tick = (value, unit) => (unit === "probability" || unit === "score" ? `${Number((100 * value).toPrecision(2))}%` : String(Number(value.toPrecision(2))));

/** Where each line's name stands: beside its own line, far from the others and from names that stand already. */
function names(lines, x, y, count) {
  const placed = [];
  const room = (at, down, wide, line) => {
    let least = Infinity;
    for (const other of lines) {
      for (let k = 0; k <= count; k++) {
        const aside = Math.max(0, Math.abs(x(k) - at) - wide / 2), away = Math.hypot(aside, y(other.values[k]) - down);
        least = Math.min(least, other === line ? Math.max(away, 0) + (away < LINE / 2 ? 0 : 1e3) : away);
      }
    }
    for (const other of placed) if (Math.abs(other.x - at) < (other.wide + wide) / 2 + 4) least = Math.min(least, Math.abs(other.y - down) - LINE / 2);
    return least;
  };
  for (const line of lines) {
    const wide = LETTER * line.name.length;
    let best = null;
    for (let k = 1; k < count; k++) {
      for (const beside of [-LINE * 0.8, LINE * 0.8]) {
        const at = Math.min(x(count) - wide / 2, Math.max(x(0) + wide / 2, x(k))), down = y(line.values[k]) + beside;
        if (down < y.top + 4 || down > y.foot - 4) continue;
        const score = Math.min(3 * LINE, room(at, down, wide, line));
        if (!best || score > best.score) best = { score, x: at, y: down, wide };
      }
    }
    if (best) placed.push({ ...best, line });
  }
  return placed;
}

/** Draw into `host`; `look(k)` is called with the step under the pointer, and with null when it leaves. */
export function curve(host, chart) {
  if (!host.plot) build(host);
  host.chart = chart;
  const { own, controls, labels, unit } = chart, count = own.length - 1;
  const width = Math.max(240, Math.floor(host.clientWidth || 320)), inner = width - LEFT - RIGHT, tall = HEIGHT - TOP - BOTTOM;
  const [low, high] = range([...own, ...Object.values(controls).flat()], unit);
  const x = (k) => LEFT + (inner * k) / count, y = (value) => TOP + (1 - (Math.min(high, Math.max(low, value)) - low) / (high - low)) * tall;
  Object.assign(y, { top: TOP, foot: TOP + tall });
  const root = svg("svg", { width, height: HEIGHT, "aria-hidden": "true" });
  for (const value of [low, (low + high) / 2, high]) {
    root.append(svg("line", { x1: LEFT, x2: LEFT + inner, y1: y(value), y2: y(value), class: "hl-grid-line" }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end", class: "hl-faint", text: tick(value, unit) }));
  }
  for (const [k, anchor] of [[0, "start"], [count / 2, "middle"], [count, "end"]]) {
    root.append(svg("text", { x: x(k), y: HEIGHT - BOTTOM + 14, "text-anchor": anchor, class: "hl-faint", text: `${Math.round((100 * k) / count)}%` }));
  }
  root.append(svg("text", { x: LEFT + inner / 2, y: HEIGHT - 4, "text-anchor": "middle", class: "hl-faint", text: chart.axis }));
  const path = (values) => values.map((value, k) => `${k ? "L" : "M"}${x(k).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const drawn = [{ name: labels.own, values: own, own: true }];
  for (const [name, values] of Object.entries(controls)) {
    root.append(svg("path", { d: path(values), class: "hl-curve hl-control", "stroke-dasharray": DASHES[name] || null }));
    drawn.push({ name: labels[name], values });
  }
  root.append(svg("path", { d: path(own), class: "hl-curve hl-own" }));
  for (const label of names(drawn, x, y, count)) {
    root.append(svg("text", { x: label.x, y: label.y + 4, "text-anchor": "middle", class: `hl-line-name ${label.line.own ? "hl-own-name" : "hl-faint"}`, text: label.line.name }));
  }
  const line = svg("line", { y1: TOP, y2: TOP + tall, class: "hl-cursor", visibility: "hidden" });
  const dot = svg("circle", { r: 4, class: "hl-own-dot", visibility: "hidden" });
  root.append(line, dot);
  host.mark = (k) => {
    for (const each of [line, dot]) each.setAttribute("visibility", k === null ? "hidden" : "visible");
    if (k === null) return;
    for (const [node, name, value] of [[line, "x1", x(k)], [line, "x2", x(k)], [dot, "cx", x(k)], [dot, "cy", y(own[k])]]) node.setAttribute(name, value);
  };
  host.nearest = (at) => Math.min(count, Math.max(0, Math.round(((at - LEFT) / inner) * count)));
  const areas = Object.entries(chart.areas).map(([name, area]) => `${labels[name]} ${area}`).join(", ");
  const heading = `${chart.title[0].toUpperCase()}${chart.title.slice(1)}`;
  host.heading.replaceChildren(make("b", { text: heading }), ` area ${chart.area}, ${chart.better}`, make("span", { class: "hl-quiet", text: ` · ${areas}` }));
  host.plot.setAttribute("aria-label", `${heading}: ${unit} over ${chart.axis}`);
  host.plot.setAttribute("aria-valuemax", count);
  host.plot.replaceChildren(root);
  say(host, null);
}

function build(host) {
  host.plot = make("div", { class: "hl-plot", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuenow": 0 });
  host.heading = make("p", { class: "hl-trust-name" });
  host.said = make("p", { class: "hl-quiet hl-trust-read" });
  host.replaceChildren(host.heading, host.plot, host.said);
  const at = (event) => host.nearest(event.clientX - host.plot.getBoundingClientRect().left);
  const to = (k) => { say(host, k); host.chart.look(k); };
  host.plot.addEventListener("pointermove", (event) => to(at(event)));
  host.plot.addEventListener("pointerdown", (event) => { host.plot.focus({ preventScroll: true }); to(at(event)); });
  // What a finger has shown stays until it touches something else.
  host.plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") to(null); });
  host.plot.addEventListener("blur", () => to(null));
  host.plot.addEventListener("keydown", (event) => {
    const { own } = host.chart, step = KEYS[event.key], end = { Home: 0, End: own.length - 1, Escape: null }[event.key];
    if (step === undefined && end === undefined) return;
    event.preventDefault();
    to(step === undefined ? end : Math.min(own.length - 1, Math.max(0, (host.at ?? (step > 0 ? -1 : own.length)) + step)));
  });
}

function say(host, k) {
  host.at = k;
  host.mark(k);
  host.plot.setAttribute("aria-valuenow", k ?? 0);
  host.plot.setAttribute("aria-valuetext", host.chart.read(k ?? 0));
  host.said.textContent = k === null ? "" : host.chart.read(k);
}
