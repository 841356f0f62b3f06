// An image with a map in a square frame, its color bar, and the value at the position that the board points to.
import { cellAt, centerOf, followCells } from "../drawing/cells.js";
import { blur } from "../drawing/field.js";
import { commonRange, drawBar, sigmaOf, view } from "../drawing/paint.js";
import { describe, quantityOf } from "../drawing/describe.js";
import { ticksOf } from "../drawing/ticks.js";
import { Surface } from "../drawing/surface.js";
import { DetectedObjects } from "../drawing/objects.js";
import { placeOfCell, showText } from "../shared/elements.js";
import { describeCell, fill, make, formatValue } from "../wire.js";

const WHOLE = [0, 0, 1, 1];

export class MapView {
  /**
   * @param {(x: ?number, y?: number) => void} point reports a relative position in the image, or null
   * @param {Record<string, any>} terms
   */
  constructor(point, terms) {
    this.report = point;
    this.terms = terms;
    this.map = null;
    this.rendering = null;
    this.unit = "";
    this.cell = null;
    this.opacity = 1;
    this.limits = null;
    this.limited = null; // the map with these limits
    this.isOld = () => false; // whether the map belongs to a former question
    this.canvas = make("canvas", { width: 512, height: 512, tabindex: 0, role: "img" });
    this.mark = make("div", { class: "hl-cell", hidden: true });
    this.stage = make("div", { class: "hl-compare-stage", hidden: true }, this.canvas, this.mark);
    this.objects = new DetectedObjects(this.stage, {});
    this.message = make("p", { class: "hl-compare-says", role: "status" });
    this.frame = make("div", { class: "hl-compare-frame" }, this.stage, this.message);
    this.read = make("output", { class: "hl-compare-read" });
    this.bar = make("canvas", { class: "hl-bar", width: 256, height: 1, role: "img" });
    this.ends = make("div", { class: "hl-ends" });
    this.rangeNote = make("p", { class: "hl-quiet hl-compare-range" });
    const scale = make("div", { class: "hl-compare-scale" }, this.bar, this.ends, this.rangeNote);
    this.parts = [this.frame, this.read, scale];
    this.surface = new Surface(this.canvas, () => this.rendering && this.paint());
    const { canvas, read } = this;
    followCells(canvas, {
      map: () => this.map,
      cell: () => this.cell,
      over: (x, y) => this.reportAt(...[x, y].map((part) => Math.min(1, Math.max(0, part)))),
      mark: (row, column) => this.reportAt(...centerOf(row, column, this.map)),
      leave: () => this.report(null),
    });
    canvas.addEventListener("blur", () => read.removeAttribute("aria-live"));
    canvas.addEventListener("focus", () => read.setAttribute("aria-live", "polite"));
  }

  get box() {
    return (this.map && this.map.box) || WHOLE;
  }

  /** Report a relative position in the map as one in the image. */
  reportAt(x, y) {
    const [left, top, right, bottom] = this.box;
    this.report(left + x * (right - left), top + y * (bottom - top));
  }

  /** Show the map of an answer over an image (or null); `things` are the detected objects. */
  setMap(map, image, value, things = value.things) {
    const { unit, alt } = value.words;
    Object.assign(this, { map, unit, value, rendering: null });
    this.surface.image = image;
    const { ratio } = this.surface; // the frame is always square, so that the layout does not shift
    this.stage.style.width = `${100 * Math.min(1, 1 / ratio)}%`;
    this.stage.style.height = `${100 * Math.min(1, ratio)}%`;
    this.stage.hidden = false;
    this.canvas.setAttribute("aria-label", alt);
    this.objects.show(things);
    this.showMessage("");
    this.surface.fit();
  }

  /** Show a message in place of the map. */
  showMessage(text) {
    showText(this.message, text);
  }

  clear(text) {
    this.map = this.rendering = this.cell = this.value = null;
    this.stage.hidden = this.mark.hidden = true;
    this.surface.clear();
    this.read.textContent = "";
    this.ends.replaceChildren();
    this.rangeNote.textContent = "";
    this.bar.getContext("2d").clearRect(0, 0, 256, 1);
    this.bar.setAttribute("aria-hidden", "true"); // nothing to describe
    this.showMessage(text);
  }

  /** Draw the map as `view` in paint.js specifies, unless it is already drawn that way. */
  draw(style) {
    const stamp = JSON.stringify([this.map.id, style]);
    if (this.rendering && stamp === this.stamp) return;
    this.stamp = stamp;
    this.rendering = view(this.map, style);
    if (style.fine && !this.rendering.fine) this.rendering = this.fineRendering(style);
    this.paint();
    drawBar(this.bar, this.rendering);
    const { low, high } = this.rendering;
    const label = fill(this.terms.color_range, { low: formatValue(low), high: formatValue(high), unit: this.unit });
    this.ticks = ticksOf(this.rendering);
    this.label = quantityOf(this.terms, this.map, style.signed === false, this.unit);
    const magnitudes = style.signed === false && this.map.signed;
    this.drawing = describe(this.terms, this.map, this.rendering, magnitudes, style.limits);
    this.ends.replaceChildren(
      make("span", { text: this.ticks[0].text }),
      make("span", { class: "hl-compare-unit", text: this.label, title: this.label }),
      make("span", { text: this.ticks.at(-1).text }),
    );
    this.bar.removeAttribute("aria-hidden");
    this.bar.setAttribute("aria-label", label.trim());
  }

  /**
   * Return the common limits of some views with maps, of which this is one. While one of them is old, a map that is drawn
   * keeps its limits, and a new one has its own.
   */
  limitsAmong(views, styleOf) {
    const current = views.filter((view) => !view.isOld());
    if (current.length < views.length && this.limited === this.map) return this.limits;
    this.limited = this.map;
    return (this.limits =
      current.length > 1
        ? commonRange(
            current.map(({ map }) => map),
            styleOf,
          )
        : null);
  }

  /** Draw as a fine map without contours even if it is mostly smooth, because one of its two source maps is fine. */
  fineRendering(style) {
    const { map } = this,
      values = style.smooth ? blur(map, sigmaOf(map.values) * Math.max(map.h, map.w)) : map.values;
    return { ...view({ ...map, values }, style), fine: true };
  }

  /** The map as it is drawn, for a figure. */
  get panel() {
    const { value, rendering, bar, ticks, label, drawing, opacity } = this;
    return { image: this.surface.image, mapOnly: false, value, rendering, bar, ticks, label, drawing, opacity };
  }

  /** How the map is drawn, for a bundle. */
  get settings() {
    const { colors, low, high, smooth } = this.rendering;
    return { opacity: this.opacity, colors, limits: [low, high], smooth };
  }

  paint() {
    this.surface.paint(this.rendering);
    this.mix(this.opacity);
  }

  mix(opacity) {
    this.opacity = opacity;
    if (this.rendering) this.surface.mix(opacity);
  }

  /** Mark the cell at a relative position of the image and show its value; null removes the mark. */
  point(x, y) {
    const { map } = this;
    this.mark.hidden = true;
    this.cell = null;
    if (!map || x === null) {
      this.read.textContent = "";
      return;
    }
    const [left, top, right, bottom] = this.box,
      [u, v] = [(x - left) / (right - left), (y - top) / (bottom - top)];
    if (u < 0 || u > 1 || v < 0 || v > 1) {
      this.read.textContent = this.terms.outside;
      return;
    }
    const [row, column] = (this.cell = cellAt(u, v, map));
    this.mark.hidden = false;
    this.mark.style.cssText = placeOfCell(row, column, map);
    this.read.textContent = describeCell(this.terms, map, row, column, this.unit);
  }
}
