// A map over the network's crop of the picture. Opacity, colours, limits and the read-out need no request.
import { NAMES } from "./colours.js";
import { field, peak } from "./field.js";
import { chart } from "./histogram.js";
import { RULE, bar, view } from "./paint.js";
import { Surface, picture } from "./surface.js";
import { Things } from "./things.js";
import { follow, make, npy, painted, save, short } from "./wire.js";

const KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

class View {
  constructor(element, props, trigger) {
    Object.assign(this, { element, props, trigger });
    this.map = null;
    this.cell = null;
    this.own = null;                                   // colour limits set by the visitor
    this.look = null;                                  // how the map is drawn, see `view` in paint.js
    this.bare = false;                                 // while the photograph alone is shown
    this.build(element.firstElementChild);
    this.surface = new Surface(this.canvas);
    new ResizeObserver(() => this.surface.fit() && (this.map ? this.colour() : this.surface.alone())).observe(this.canvas);
  }

  build(root) {
    this.canvas = make("canvas", { width: 512, height: 512, tabindex: 0, role: "img", "aria-label": this.props.empty });
    this.box = make("div", { class: "hl-cell", hidden: true });
    this.field = make("div", { class: "hl-field", hidden: true });
    this.heading = make("h3", { class: "hl-heading", hidden: true });
    this.facts = make("dl", { class: "hl-facts" });
    this.empty = make("p", { class: "hl-empty", text: this.props.empty });
    this.frame = make("div", { class: "hl-frame" }, this.canvas, this.field, this.box, this.empty);
    this.things = new Things(this.frame, this.props.things || {});
    this.read = make("output", { class: "hl-read", "aria-live": "polite" });
    this.bar = make("canvas", { class: "hl-bar", width: 256, height: 1, role: "img" });
    this.ends = make("div", { class: "hl-ends" });
    this.drawing = make("p", { class: "hl-quiet" });
    this.chart = make("div", { class: "hl-chart", role: "img" });
    const scale = make("div", { class: "hl-scale" }, ...(this.props.chart ? [this.chart] : []), this.bar, this.ends, this.drawing);
    root.replaceChildren(this.heading, this.frame, this.read, scale, this.tools(), this.facts);
    this.listen();
  }

  tools() {
    this.opacity = make("input", { type: "range", min: 0, max: 100, value: 100, name: "opacity", oninput: () => this.mix() });
    this.tint = make("select", { name: "colours", onchange: () => this.choose() },
      ...NAMES.map(([value, text]) => make("option", { value, text })));
    this.smooth = make("input", { type: "checkbox", name: "smooth", checked: true, onchange: () => this.colour() });
    this.signed = make("input", { type: "checkbox", name: "signed", checked: true, onchange: () => { this.own = null; this.colour(); } });
    this.signs = make("label", { class: "hl-tick", hidden: true, title: "Negative values in blue; off: magnitudes" },
      this.signed, make("span", { text: "Signed" }));
    const limit = (name) => make("input", { type: "number", step: "any", name, onchange: () => this.limit() });
    [this.low, this.high] = [limit("low"), limit("high")];
    this.low.setAttribute("aria-label", "Lowest value shown");
    this.high.setAttribute("aria-label", "Highest value shown");
    const button = (text, onclick) => make("button", { type: "button", class: "hl-button", text, onclick, disabled: true });
    this.hold = button("Photograph", null);
    this.hold.title = "Hold to see the photograph alone; on the map, hold P";
    this.hold.setAttribute("aria-pressed", "false");
    this.buttons = [this.hold, button("Save PNG", () => this.png()), button("Save .npy", () => this.array())];
    const reset = make("button", { type: "button", class: "hl-link", text: "Reset",
      onclick: () => { this.own = null; this.colour(); } });
    const label = (text, ...inputs) => make("label", {}, make("span", { text }), ...inputs);
    return make("div", { class: "hl-tools" },
      label("Opacity", this.opacity), label("Colours", this.tint),
      make("div", { class: "hl-limits", role: "group", "aria-label": "Limits" }, make("span", { text: "Limits" }),
        this.low, make("span", { text: "to" }), this.high, reset),
      make("label", { class: "hl-tick" }, this.smooth, make("span", { text: "Smooth" })),
      this.signs, this.things.label,
      make("div", { class: "hl-saves" }, ...this.buttons));
  }

  listen() {
    const place = (event) => {
      const rect = this.canvas.getBoundingClientRect();
      return [(event.clientX - rect.left) / rect.width, (event.clientY - rect.top) / rect.height];
    };
    const over = (event) => {
      const [x, y] = place(event), at = (part, cells) => Math.min(cells - 1, Math.max(0, Math.floor(part * cells)));
      this.canvas.style.cursor = this.things.take(x, y) ? "pointer" : "";
      if (this.map) this.point(at(y, this.map.h), at(x, this.map.w), x, y);
      else this.read.textContent = this.things.point(x, y);
    };
    this.canvas.addEventListener("click", (event) => this.take(...place(event)));
    this.canvas.addEventListener("pointermove", over);
    this.canvas.addEventListener("pointerdown", over);
    this.canvas.addEventListener("pointerleave", () => { if (document.activeElement !== this.canvas) this.point(null); });
    this.canvas.addEventListener("blur", () => this.point(null));
    this.canvas.addEventListener("focus", () => { if (this.map && !this.cell && this.canvas.matches(":focus-visible")) this.point(...peak(this.map)); });
    const bare = (event, on) => { if (on) event.preventDefault(); this.held(on); };
    for (const name of ["pointerup", "pointerleave", "pointercancel", "keyup", "blur"]) this.hold.addEventListener(name, (event) => bare(event, false));
    this.hold.addEventListener("pointerdown", () => this.held(true));
    this.hold.addEventListener("keydown", (event) => { if (event.key === " " || event.key === "Enter") bare(event, true); });
    for (const name of ["keyup", "blur"]) this.canvas.addEventListener(name, () => this.held(false));
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey && !event.altKey) return bare(event, true);
      if (event.key === "Enter" && this.cell) return this.take(...this.middle(...this.cell));
      const step = KEYS[event.key];
      if (!step || !this.map) return;
      event.preventDefault();
      const [row, column] = this.cell || peak(this.map);
      const far = event.shiftKey ? Math.max(1, Math.round(this.map.w / 16)) : 1;
      const stay = (value, cells) => Math.min(cells - 1, Math.max(0, value));
      this.point(stay(row + far * step[0], this.map.h), stay(column + far * step[1], this.map.w));
    });
  }

  async show() {
    const since = performance.now();
    const value = this.props.value;
    const same = this.value && value && this.value.about === value.about;
    this.value = value;
    this.things.show(value && value.things);
    if (!value || !(value.map || value.crop)) return this.clear(value, since);
    const image = value.crop ? await picture(value.crop.src) : this.surface.image;
    if (this.value !== value) return;                  // a newer answer came while this picture was decoded
    this.surface.image = image;
    if (!same) {
      this.own = null;
      this.cell = null;
      this.signed.checked = !(value.map && value.map.by_size) || this.tint.value === "signed";
    }
    this.frame.style.aspectRatio = String(1 / this.surface.ratio);
    this.empty.hidden = true;
    this.frame.dataset.state = value.map ? value.state || "done" : "alone";
    this.canvas.setAttribute("aria-label", value.words.alt);
    for (const button of this.buttons) button.disabled = !value.map;
    if (value.map) this.lay(field(value.map));
    else this.alone();
    this.describe(value);
    painted(this.element, value.id, since);
  }

  /** Draw a map over the picture; limits, read-out and switches stay. */
  lay(map) {
    this.map = map;
    this.signs.hidden = !map.signed;
    this.surface.fit();
    this.colour();
    this.point(...(this.cell || [null]));
  }

  /** The photograph without a map: nothing was found in it that could be explained. */
  alone() {
    this.map = null;
    this.signs.hidden = true;
    this.surface.fit();
    this.surface.alone();
    this.ends.replaceChildren();
    this.bar.getContext("2d").clearRect(0, 0, this.bar.width, this.bar.height);
    this.drawing.textContent = "";
    this.point(null);
  }

  /** Ask for the thing at this point of the picture. */
  take(x, y) {
    const target = this.things.take(x, y);
    if (target) this.trigger("select", { target });
  }

  /** The middle of a cell, in parts of the picture. */
  middle(row, column) {
    return [(column + 0.5) / this.map.w, (row + 0.5) / this.map.h];
  }

  /** A channel's heading, figures, and the receptive field of its strongest cell. */
  describe(value) {
    this.heading.hidden = !value.words.title;
    this.heading.textContent = value.words.title || "";
    this.facts.replaceChildren(...(value.words.facts || []).flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]));
    const box = value.box;
    this.field.hidden = !box;
    if (box) this.field.style.cssText = `left:${100 * box[0]}%;top:${100 * box[1]}%;width:${100 * (box[2] - box[0])}%;height:${100 * (box[3] - box[1])}%`;
  }

  clear(value, since) {
    this.map = null;
    this.empty.hidden = false;
    this.empty.textContent = (value && value.words && value.words.empty) || this.props.empty;
    this.surface.clear();
    this.canvas.setAttribute("aria-label", this.empty.textContent);
    this.read.textContent = "";
    this.ends.replaceChildren();
    this.drawing.textContent = "";
    this.facts.replaceChildren();
    this.heading.hidden = this.field.hidden = true;
    for (const button of this.buttons) button.disabled = true;
    this.point(null);
    painted(this.element, value && value.id, since);
  }

  limit() {
    const [lo, hi] = [parseFloat(this.low.value), parseFloat(this.high.value)];
    this.own = Number.isFinite(lo) && Number.isFinite(hi) && hi > lo ? [lo, hi] : null;
    this.colour();
  }

  choose() {
    this.own = null;
    if (this.tint.value === "signed") this.signed.checked = true;
    this.colour();
  }

  /** Show the photograph alone while `on`. */
  held(on) {
    if (this.bare === on || !this.map) return;
    this.bare = on;
    this.hold.setAttribute("aria-pressed", String(on));
    this.mix();
  }

  /** Draw the map once; opacity then only blends two pictures. */
  colour() {
    if (!this.map) return;
    const { tint, own: limits, signed, smooth } = this;
    this.look = view(this.map, { colours: tint.value, limits, signed: signed.checked, smooth: smooth.checked });
    this.surface.paint(this.look);
    if (!limits) [this.low.value, this.high.value] = [this.look.low, this.look.high].map((value) => Number(value.toPrecision(4)));
    this.scale(this.look);
    this.mix();
  }

  mix() {
    if (!this.map) return;
    this.surface.mix(this.bare ? 0 : this.opacity.value / 100);
    this.opacity.setAttribute("aria-valuetext", `${this.opacity.value} per cent`);
  }

  scale(look) {
    const context = this.bar.getContext("2d");
    const pixels = context.createImageData(256, 1);
    bar(pixels.data, look);
    context.putImageData(pixels, 0, 0);
    const unit = this.value.words.unit, beyond = look.clipped;
    const marks = [`${beyond && look.colours === "signed" ? "≤ " : ""}${short(look.low)}`, short((look.low + look.high) / 2),
      `${beyond ? "≥ " : ""}${short(look.high)}${unit ? ` ${unit}` : ""}`];
    this.ends.replaceChildren(...marks.map((text) => make("span", { text })));
    this.bar.setAttribute("aria-label", `Colours from ${short(look.low)} to ${short(look.high)} ${unit}`);
    this.drawing.textContent = this.drawn(look);
    if (this.props.chart) chart(this.chart, this.map, look, this.map.signed && !this.signed.checked);
  }

  /** How the drawing differs from the map, and what its contours are. */
  drawn(look) {
    if (!look.fine) return `Contours at ${100 * RULE.low_line}% and ${100 * RULE.high_line}% of the colour range.`;
    const parts = [this.map.signed && !this.signed.checked && "magnitudes",
      !this.own && `colours saturate at the ${100 * RULE.full}th percentile`, look.smooth && "blurred by about one pixel"].filter(Boolean);
    return parts.length ? `Drawn: ${parts.join(", ")}. Read-out and .npy hold the map itself.` : "";
  }

  /** Mark cell (row, column) and show its value, and what is at (x, y) there; null removes the mark. */
  point(row, column, x, y) {
    const { map, box } = this, cell = map && Number.isInteger(row) ? { row, column } : null;
    this.element.dispatchEvent(new CustomEvent("hl-cell", { bubbles: true, detail: cell }));
    if (row === null || row === undefined || !map) {
      this.cell = null;
      this.things.point(null);
      box.hidden = true;
      this.read.textContent = map ? this.value.words.hint : "";
      return;
    }
    this.cell = [row, column];
    box.hidden = false;
    box.style.cssText = `left:${(100 * column) / map.w}%;top:${(100 * row) / map.h}%;width:${100 / map.w}%;height:${100 / map.h}%`;
    const unit = this.value.words.unit, thing = this.things.point(...(x === undefined ? this.middle(row, column) : [x, y]));
    this.read.textContent =
      `${short(map.values[row * map.w + column])}${unit ? ` ${unit}` : ""} at row ${row + 1}, column ${column + 1} of ${map.h} × ${map.w}${thing ? ` · ${thing}` : ""}`;
  }

  async png() {
    save(await this.surface.png(this.opacity.value / 100), `${this.value.name}.png`);
    this.mix();
  }

  array() {
    save(npy(this.map.values, [this.map.h, this.map.w]), `${this.value.name}.npy`);
  }
}

export function mount(element, props, trigger, watch) {
  const view = new View(element, props, trigger);
  follow(props, watch, ["value"], () => view.show());
}
