// A map in a notebook: opacity, color limits, a divider and the value at the pointer, without a server.
import { cellAt, followCells } from "../drawing/cells.js";
import { blur } from "../drawing/field.js";
import { Surface, loadImage } from "../drawing/surface.js";
import { endTicks } from "../drawing/ticks.js";
import { describeCell, floats, formatExact, make } from "../wire.js";

const rounded = (value) => formatExact(Number(value.toPrecision(4)));

class NotebookMap {
  /**
   * @param {HTMLImageElement} image
   * @param {Record<string, any>} data see explainers/display/figure.py
   */
  constructor(image, { map, drawing, scale, limits, signed, unit, label, terms }) {
    this.map = { ...map, values: floats(map) };
    const values = this.map.values.map((v) => (Number.isFinite(v) ? (signed ? v : Math.abs(v)) : NaN));
    const shown = drawing.sigma ? blur({ ...this.map, values }, drawing.sigma) : values;
    this.drawing = { ...this.map, ...drawing, values: shown };
    this.limits = limits;
    this.unit = unit;
    this.terms = terms;
    this.cell = null;
    this.canvas = make("canvas", { width: 448, height: 448, tabindex: 0, role: "img", "aria-label": label });
    this.surface = new Surface(this.canvas, () => this.render());
    this.surface.image = image;
    this.makeControls();
    this.scale = make("img", { class: "saliscope-scale", src: scale });
    this.ticks = make("div", { class: "saliscope-ticks" });
    this.read = make("output", { class: "saliscope-read", "aria-live": "polite" });
    this.root = make("div", {}, this.tools, this.canvas, this.scale, this.ticks, this.read);
    this.listen();
  }

  makeControls() {
    const { terms } = this;
    const modes = ["overlay", "photograph", "map", "swipe"].map((mode) =>
      make("option", { value: mode, text: terms[mode] }),
    );
    this.mode = make("select", { "aria-label": terms.mode, oninput: () => this.mix() }, ...modes);
    this.share = make("input", { type: "range", min: 0, max: 1, step: 0.01, value: 1, oninput: () => this.mix() });
    this.shareName = make("span", { text: terms.opacity });
    const limit = (name) =>
      make("input", { type: "number", step: "any", "aria-label": terms[name], oninput: () => this.readLimits() });
    this.low = limit("low");
    this.high = limit("high");
    this.reset = make("button", { text: terms.reset, onclick: () => this.setLimits(null) });
    const opacity = make("label", {}, this.shareName, this.share);
    const range = make("span", {}, `${terms.colors} `, this.low, ` ${terms.to} `, this.high);
    this.tools = make("div", { class: "saliscope-tools" }, this.mode, opacity, range, this.reset);
  }

  listen() {
    const { canvas } = this;
    followCells(canvas, {
      map: () => this.map,
      cell: () => this.cell,
      start: ({ h, w }) => [Math.floor(h / 2), Math.floor(w / 2)],
      over: (x, y) => {
        if (this.mode.value === "swipe") {
          this.share.value = String(x);
          this.mix();
        }
        this.point(...cellAt(x, y, this.map));
      },
      mark: (row, column) => this.point(row, column),
      leave: () => this.point(null),
    });
  }

  /** Make the fields as wide as their numbers. */
  widen() {
    for (const field of [this.low, this.high]) field.style.width = `${Math.max(6, field.value.length) + 1}ch`;
  }

  readLimits() {
    this.widen();
    const limits = [this.low.valueAsNumber, this.high.valueAsNumber];
    const isRange = limits.every(Number.isFinite) && limits[1] > limits[0];
    for (const field of [this.low, this.high]) field.setCustomValidity(isRange ? "" : this.terms.invalid);
    if (isRange) this.setLimits(limits, true);
    else this.high.reportValidity();
  }

  setLimits(limits, typed = false) {
    this.limits = limits;
    this.draw(typed);
  }

  /** Draw the map and its color bar; `typed`: without changing the fields, in which somebody types. */
  draw(typed = false) {
    let [low, high] = this.limits || [this.drawing.low, this.drawing.high];
    const far = Math.max(Math.abs(low), Math.abs(high));
    if (this.drawing.colors === "signed") [low, high] = [-far, far];
    this.rendering = { ...this.drawing, low, high, clipped: this.drawing.largest > far };
    if (!typed) [this.low.value, this.high.value] = [low, high].map(rounded);
    this.widen();
    const ticks = endTicks(this.rendering);
    const [first, last] = [ticks[0].text, `${ticks[1].text} ${this.unit}`];
    this.scale.setAttribute("alt", `${first} ${this.terms.to} ${last}`);
    this.ticks.replaceChildren(make("span", { text: first }), make("span", { text: last }));
    this.render();
  }

  render() {
    const { surface, canvas } = this;
    surface.rendering = this.rendering;
    surface.render(surface.own, canvas.width, canvas.height, true);
    this.mix();
  }

  mix() {
    const mode = this.mode.value,
      share = this.share.valueAsNumber,
      hasDivider = mode === "swipe";
    this.shareName.textContent = hasDivider ? this.terms.divider : this.terms.opacity;
    this.share.disabled = mode === "photograph" || mode === "map";
    this.surface.mix(hasDivider ? 1 : share, { mode, split: share });
  }

  /** Show the value of a cell; null removes it. */
  point(row, column) {
    this.cell = row === null ? null : [row, column];
    this.read.textContent = this.cell ? describeCell(this.terms, this.map, this.cell[0], this.cell[1], this.unit) : "";
  }
}

/**
 * Replace the static image in an element by the map with its controls.
 * @param {?Element} root
 * @param {Record<string, any>} data
 */
export async function showMap(root, data) {
  const image = root && (await loadImage(data.image));
  if (!image) return; // the static image remains
  const map = new NotebookMap(image, data);
  root.replaceChildren(map.root);
  map.surface.fit();
  map.draw();
}
