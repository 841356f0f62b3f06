// A map over the picture that the network saw. Opacity, colours, limits and the read-out are moved here, without a request.
import { NAMES, glaze, paint } from "./colours.js";
import { colours, field, histogram, limits, peak, resize } from "./field.js";
import { follow, make, npy, painted, save, short } from "./wire.js";

const KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

class View {
  constructor(element, props) {
    this.element = element;
    this.props = props;
    this.picture = null;
    this.map = null;
    this.cell = null;
    this.own = null;                                   // limits set by the visitor
    this.layer = document.createElement("canvas");     // the coloured map alone
    this.build(element.firstElementChild);
  }

  build(root) {
    this.canvas = make("canvas", { width: 512, height: 512, tabindex: 0, role: "img", "aria-label": this.props.empty });
    this.box = make("div", { class: "hl-cell", hidden: true });
    this.field = make("div", { class: "hl-field", hidden: true });
    this.heading = make("h3", { class: "hl-heading", hidden: true });
    this.facts = make("dl", { class: "hl-facts" });
    this.empty = make("p", { class: "hl-empty", text: this.props.empty });
    this.frame = make("div", { class: "hl-frame" }, this.canvas, this.field, this.box, this.empty);
    this.read = make("output", { class: "hl-read", "aria-live": "polite" });
    this.bar = make("canvas", { class: "hl-bar", width: 256, height: 1, role: "img" });
    this.ends = make("div", { class: "hl-ends" });
    this.chart = make("div", { class: "hl-chart", role: "img" });
    const scale = make("div", { class: "hl-scale" }, this.bar, this.ends, ...(this.props.chart ? [this.chart] : []));
    root.replaceChildren(this.heading, this.frame, this.read, scale, this.tools(), this.facts);
    this.listen();
  }

  tools() {
    const redraw = () => this.draw();
    this.opacity = make("input", { type: "range", min: 0, max: 100, value: 70, name: "opacity", oninput: redraw });
    this.tint = make("select", { name: "colours", onchange: () => { this.own = null; this.colour(); } },
      ...NAMES.map(([value, text]) => make("option", { value, text })));
    this.smooth = make("input", { type: "checkbox", name: "smooth", checked: true, onchange: () => this.colour() });
    this.fade = make("input", { type: "checkbox", name: "fade", checked: true, onchange: () => this.colour() });
    const limit = (name) => make("input", { type: "number", step: "any", name, onchange: () => this.limit() });
    [this.low, this.high] = [limit("low"), limit("high")];
    this.low.setAttribute("aria-label", "Lowest value shown");
    this.high.setAttribute("aria-label", "Highest value shown");
    const button = (text, onclick) => make("button", { type: "button", class: "hl-button", text, onclick, disabled: true });
    this.buttons = [button("Save PNG", () => this.png()), button("Save .npy", () => this.array())];
    const reset = make("button", { type: "button", class: "hl-link", text: "Reset",
      onclick: () => { this.own = null; this.colour(); } });
    const label = (text, ...inputs) => make("label", {}, make("span", { text }), ...inputs);
    return make("div", { class: "hl-tools" },
      label("Opacity", this.opacity), label("Colours", this.tint),
      make("div", { class: "hl-limits", role: "group", "aria-label": "Limits" }, make("span", { text: "Limits" }),
        this.low, make("span", { text: "to" }), this.high, reset),
      make("label", { class: "hl-tick" }, this.smooth, make("span", { text: "Smooth" })),
      make("label", { class: "hl-tick" }, this.fade, make("span", { text: "Fade low values" })),
      make("div", { class: "hl-saves" }, ...this.buttons));
  }

  listen() {
    const over = (event) => {
      if (!this.map) return;
      const rect = this.canvas.getBoundingClientRect();
      const at = (part, whole, cells) => Math.min(cells - 1, Math.max(0, Math.floor((part / whole) * cells)));
      this.point(at(event.clientY - rect.top, rect.height, this.map.h), at(event.clientX - rect.left, rect.width, this.map.w));
    };
    this.canvas.addEventListener("pointermove", over);
    this.canvas.addEventListener("pointerdown", over);
    this.canvas.addEventListener("pointerleave", () => { if (document.activeElement !== this.canvas) this.point(null); });
    this.canvas.addEventListener("blur", () => this.point(null));
    this.canvas.addEventListener("focus", () => { if (this.map && !this.cell && this.canvas.matches(":focus-visible")) this.point(...peak(this.map)); });
    this.canvas.addEventListener("keydown", (event) => {
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
    if (!value || !value.map) return this.clear(value, since);
    const image = value.crop ? await picture(value.crop.src) : this.picture;
    if (this.value !== value) return;                  // a newer answer came while this picture was decoded
    this.picture = image;
    this.map = field(value.map);
    if (!same) { this.own = null; this.cell = null; }
    if (image) [this.canvas.width, this.canvas.height] = [image.naturalWidth, image.naturalHeight];
    this.frame.style.aspectRatio = `${this.canvas.width} / ${this.canvas.height}`;
    this.empty.hidden = true;
    this.frame.dataset.state = value.state || "done";
    this.canvas.setAttribute("aria-label", value.words.alt);
    for (const button of this.buttons) button.disabled = false;
    this.colour();
    this.point(...(this.cell || [null]));
    this.describe(value);
    painted(this.element, value.id, since);
  }

  /** What belongs to one map alone: a heading, its figures, and the part of the picture that its strongest cell can see. */
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
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.canvas.setAttribute("aria-label", this.empty.textContent);
    this.read.textContent = "";
    this.ends.replaceChildren();
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

  /** Colour the map once; opacity then only mixes two pictures. */
  colour() {
    if (!this.map) return;
    const tint = colours(this.map, this.tint.value);
    const [lo, hi] = this.own || (tint === "signed" ? limits({ ...this.map, signed: true }) : limits(this.map));
    const look = { lo, hi, colours: tint, fade: this.fade.checked };
    const { width, height } = this.canvas;
    [this.layer.width, this.layer.height] = [width, height];
    const context = this.layer.getContext("2d");
    const pixels = context.createImageData(width, height);
    glaze(resize(this.map, width, height, this.smooth.checked), pixels.data, width, look);
    context.putImageData(pixels, 0, 0);
    if (!this.own) [this.low.value, this.high.value] = [lo, hi].map((value) => Number(value.toPrecision(4)));
    this.scale(look);
    this.draw();
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (this.picture) context.drawImage(this.picture, 0, 0);
    if (!this.map) return;
    context.globalAlpha = this.opacity.value / 100;
    context.drawImage(this.layer, 0, 0);
    context.globalAlpha = 1;
    this.opacity.setAttribute("aria-valuetext", `${this.opacity.value} per cent`);
  }

  scale(look) {
    const context = this.bar.getContext("2d");
    const pixels = context.createImageData(256, 1);
    const steps = Float32Array.from({ length: 256 }, (_, i) => look.lo + ((look.hi - look.lo) * i) / 255);
    paint(steps, pixels.data, look);
    context.putImageData(pixels, 0, 0);
    const marks = [look.lo, (look.lo + look.hi) / 2, look.hi];
    const unit = this.value.words.unit;
    this.ends.replaceChildren(...marks.map((mark, i) => make("span", { text: short(mark) + (i === 2 && unit ? ` ${unit}` : "") })));
    this.bar.setAttribute("aria-label", `Colours from ${short(look.lo)} to ${short(look.hi)} ${unit}`);
    if (!this.props.chart) return;
    const counts = histogram(this.map);
    const most = Math.max(...counts, 1);
    this.chart.replaceChildren(...counts.map((count) => make("i", { style: `height:${(100 * count) / most}%` })));
    this.chart.setAttribute("aria-label", `Histogram of ${this.map.values.length} values from ${short(this.map.lo)} to ${short(this.map.hi)}`);
  }

  /** Show cell (row, column) and its raw value; null takes the mark away. */
  point(row, column) {
    const { map, box } = this;
    if (row === null || row === undefined || !map) {
      this.cell = null;
      box.hidden = true;
      this.read.textContent = map ? this.value.words.hint : "";
      return;
    }
    this.cell = [row, column];
    box.hidden = false;
    box.style.cssText = `left:${(100 * column) / map.w}%;top:${(100 * row) / map.h}%;width:${100 / map.w}%;height:${100 / map.h}%`;
    const unit = this.value.words.unit;
    this.read.textContent =
      `${short(map.values[row * map.w + column])}${unit ? ` ${unit}` : ""} at row ${row + 1}, column ${column + 1} of ${map.h} × ${map.w}`;
  }

  png() {
    this.canvas.toBlob((blob) => save(blob, `${this.value.name}.png`), "image/png");
  }

  array() {
    save(npy(this.map.values, [this.map.h, this.map.w]), `${this.value.name}.npy`);
  }
}

function picture(source) {
  return new Promise((resolve) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => resolve(null);
    image.src = source;
  });
}

export function mount(element, props, trigger, watch) {
  const view = new View(element, props);
  follow(props, watch, ["value"], () => view.show());
}
