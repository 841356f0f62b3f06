// A photograph with a map in a square frame, its colour bar, and the value at the place that the board points to.
import { blur, peak } from "../drawing/field.js";
import { RULE, bar, view } from "../drawing/paint.js";
import { Surface } from "../drawing/surface.js";
import { Things } from "../drawing/things.js";
import { make, short } from "../wire.js";

const KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const WHOLE = [0, 0, 1, 1];
const stay = (value, cells) => Math.min(cells - 1, Math.max(0, value));

export class Plate {
  /** `point(x, y)` tells the board a place in parts of the photograph, or null; `outside` is said where there is no map. */
  constructor(point, outside) {
    Object.assign(this, { tell: point, outside, map: null, look: null, unit: "", cell: null, opacity: 1 });
    this.canvas = make("canvas", { width: 512, height: 512, tabindex: 0, role: "img" });
    this.mark = make("div", { class: "hl-cell", hidden: true });
    this.stage = make("div", { class: "hl-compare-stage", hidden: true }, this.canvas, this.mark);
    this.things = new Things(this.stage, {});
    this.says = make("p", { class: "hl-compare-says", role: "status" });
    this.frame = make("div", { class: "hl-compare-frame" }, this.stage, this.says);
    this.read = make("output", { class: "hl-compare-read" });
    this.bar = make("canvas", { class: "hl-bar", width: 256, height: 1, role: "img" });
    this.ends = make("div", { class: "hl-ends" });
    this.parts = [this.frame, this.read, make("div", { class: "hl-compare-scale" }, this.bar, this.ends)];
    this.surface = new Surface(this.canvas);
    new ResizeObserver(() => { if (this.surface.fit() && this.look) this.paint(); }).observe(this.canvas);
    this.listen();
  }

  listen() {
    const over = (event) => {
      const rect = this.canvas.getBoundingClientRect(), [left, top, right, bottom] = this.box;
      const part = (at, low, wide) => Math.min(1, Math.max(0, (at - low) / wide));
      this.tell(left + part(event.clientX, rect.left, rect.width) * (right - left),
        top + part(event.clientY, rect.top, rect.height) * (bottom - top));
    };
    for (const name of ["pointermove", "pointerdown"]) this.canvas.addEventListener(name, over);
    this.canvas.addEventListener("pointerleave", (event) => {
      if (document.activeElement !== this.canvas && event.pointerType !== "touch") this.tell(null);
    });
    this.canvas.addEventListener("blur", () => { this.read.removeAttribute("aria-live"); this.tell(null); });
    this.canvas.addEventListener("focus", () => {
      this.read.setAttribute("aria-live", "polite");
      if (this.map && !this.cell && this.canvas.matches(":focus-visible")) this.at(...peak(this.map));
    });
    this.canvas.addEventListener("keydown", (event) => {
      const step = KEYS[event.key];
      if (!step || !this.map || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const [row, column] = this.cell || peak(this.map), far = event.shiftKey ? Math.max(1, Math.round(this.map.w / 16)) : 1;
      this.at(stay(row + far * step[0], this.map.h), stay(column + far * step[1], this.map.w));
    });
  }

  get box() {
    return (this.map && this.map.box) || WHOLE;
  }

  /** Point at the middle of a cell. */
  at(row, column) {
    const [left, top, right, bottom] = this.box;
    this.tell(left + ((column + 0.5) / this.map.w) * (right - left), top + ((row + 0.5) / this.map.h) * (bottom - top));
  }

  /** A map over a picture (or null); `things` are what was found in it, `value` the answer that it is from. */
  lay(map, image, unit, alt, things, value = null) {
    Object.assign(this, { map, unit, value, look: null });
    this.surface.image = image;
    const { ratio } = this.surface;                        // the frame is square whatever the picture: nothing moves
    this.stage.style.width = `${100 * Math.min(1, 1 / ratio)}%`;
    this.stage.style.height = `${100 * Math.min(1, ratio)}%`;
    this.stage.hidden = false;
    this.canvas.setAttribute("aria-label", alt);
    this.things.show(things);
    this.say("");
    this.surface.fit();
  }

  /** A sentence in the place of the map. */
  say(text) {
    this.says.textContent = text;
    this.says.hidden = !text;
  }

  clear(text) {
    this.map = this.look = this.cell = this.value = null;
    this.stage.hidden = this.mark.hidden = true;
    this.surface.clear();
    this.read.textContent = "";
    this.ends.replaceChildren();
    this.bar.getContext("2d").clearRect(0, 0, 256, 1);
    this.bar.setAttribute("aria-hidden", "true");          // nothing to be described
    this.say(text);
  }

  /** The range of colours that the map has by itself. */
  range(style) {
    const { low, high } = view(this.map, { ...style, limits: null });
    return [low, high];
  }

  /** Draw the map as `view` in paint.js says, unless it is drawn so already. */
  draw(style) {
    const stamp = JSON.stringify([this.map.id, style]);
    if (this.look && stamp === this.stamp) return;
    this.stamp = stamp;
    this.look = view(this.map, style);
    if (style.fine && !this.look.fine) this.look = this.refined(style);
    this.paint();
    const context = this.bar.getContext("2d"), pixels = context.createImageData(256, 1);
    bar(pixels.data, this.look);
    context.putImageData(pixels, 0, 0);
    const { low, high, clipped, colours } = this.look, unit = this.unit ? ` ${this.unit}` : "";
    const marks = [`${clipped && colours === "signed" ? "≤ " : ""}${short(low)}`, `${clipped ? "≥ " : ""}${short(high)}`];
    this.ends.replaceChildren(make("span", { text: marks[0] }), make("span", { class: "hl-compare-unit", text: this.unit, title: this.unit }),
      make("span", { text: marks[1] }));
    this.bar.removeAttribute("aria-hidden");
    this.bar.setAttribute("aria-label", `Colours from ${short(low)} to ${short(high)}${unit}`);
  }

  /** Drawn as a map of pixels, without contours, though most of it is smooth: one of two maps that it is made of is. */
  refined(style) {
    const { map } = this, values = style.smooth ? blur(map, RULE.blur * Math.max(map.h, map.w)) : map.values;
    return { ...view({ ...map, values }, style), fine: true };
  }

  paint() {
    this.surface.paint(this.look);
    this.mix(this.opacity);
  }

  mix(opacity) {
    this.opacity = opacity;
    if (this.look) this.surface.mix(opacity);
  }

  /** Mark the cell at a place in parts of the photograph and read its value; null takes the mark away. */
  point(x, y) {
    const { map } = this;
    this.mark.hidden = true;
    this.cell = null;
    if (!map || x === null) {
      this.read.textContent = "";
      return;
    }
    const [left, top, right, bottom] = this.box, [u, v] = [(x - left) / (right - left), (y - top) / (bottom - top)];
    if (u < 0 || u > 1 || v < 0 || v > 1) {
      this.read.textContent = this.outside;
      return;
    }
    const [row, column] = this.cell = [stay(Math.floor(v * map.h), map.h), stay(Math.floor(u * map.w), map.w)];
    this.mark.hidden = false;
    this.mark.style.cssText = `left:${(100 * column) / map.w}%;top:${(100 * row) / map.h}%;width:${100 / map.w}%;height:${100 / map.h}%`;
    this.read.textContent = `${short(map.values[row * map.w + column])}${this.unit ? ` ${this.unit}` : ""} at row ${row + 1}, column ${column + 1} of ${map.h} × ${map.w}`;
  }
}
