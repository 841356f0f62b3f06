// Objects and regions that a model found in the image, drawn over the map as boxes or outlines. A click selects the
// smallest one at that position, or the next larger one if that is already selected.
import { cellAt } from "./cells.js";
import { makeTick } from "../shared/elements.js";
import { bytes, formatShare, make } from "../wire.js";

/** Class colors that are visible on an image under a map, and on the light and dark page background. */
export const CLASS_COLORS = [
  "#56b4e9",
  "#f0a030",
  "#2fbf8f",
  "#e86fb0",
  "#d9cf2b",
  "#6f8cff",
  "#e8604c",
  "#7bc850",
  "#c58bf0",
  "#4fc9c9",
];
const HALO = "rgba(20, 20, 24, .85)";
const FONT = 12; // font size of the names in px
const NAMED = 12; // with more boxes, only the selected and the hovered one get names

export class DetectedObjects {
  /**
   * @param {HTMLElement} frame
   * @param {{detection?: string, segmentation?: string}} words labels of the checkbox that hides the objects
   */
  constructor(frame, words) {
    this.canvas = make("canvas", { class: "hl-things", "aria-hidden": "true" });
    this.words = words;
    this.items = [];
    this.plane = this.chosen = this.pointed = null;
    const attributes = { name: "things", checked: true, onchange: () => this.draw() };
    const { input, root } = makeTick("", attributes, { hidden: true });
    this.tick = input;
    this.label = root;
    frame.append(this.canvas);
    new ResizeObserver(() => this.draw()).observe(frame);
  }

  show(value) {
    this.items = (value && value.items) || [];
    this.chosen = value ? value.chosen : null;
    this.pointed = null;
    this.plane = value && value.plane ? { ...value.plane, at: bytes(value.plane.b64) } : null;
    this.label.hidden = !this.items.length;
    this.label.lastElementChild.textContent = this.plane ? this.words.segmentation : this.words.detection;
    this.draw();
  }

  /** Return the objects at a relative position, smallest first. */
  objectsAt(x, y) {
    const { plane } = this,
      [row, column] = plane ? cellAt(x, y, plane) : [0, 0],
      k = plane ? plane.at[row * plane.w + column] - 1 : -1;
    const isAt = ([left, top, right, bottom]) => x >= left && x <= right && y >= top && y <= bottom,
      areaOf = ([left, top, right, bottom]) => (right - left) * (bottom - top),
      sizeOf = ({ box, share }) => (plane ? share : areaOf(box));
    return this.items
      .map((_, i) => i)
      .filter((i) => (plane ? this.contains(i, k) : isAt(this.items[i].box)))
      .sort((a, b) => sizeOf(this.items[a]) - sizeOf(this.items[b]));
  }

  /**
   * Check whether object `i` contains the pixels of object `k`: its own, or a region of its class if it covers the
   * class.
   */
  contains(i, k) {
    return k >= 0 && (i === k || (this.items[i].whole && this.items[i].label === this.items[k].label));
  }

  /** Return the name that a click at this position selects, or null. */
  take(x, y) {
    const found = this.objectsAt(x, y);
    const next = found[(found.indexOf(this.chosen) + 1) % found.length];
    return next === undefined || next === this.chosen ? null : this.items[next].name;
  }

  /** Highlight the object under the pointer; returns its name, or "". */
  point(x, y) {
    const next = x === null ? null : (this.objectsAt(x, y)[0] ?? null);
    if (next !== this.pointed) {
      this.pointed = next;
      this.draw();
    }
    return next === null ? "" : this.items[next].name;
  }

  draw() {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1,
      { clientWidth: wide, clientHeight: high } = canvas;
    [canvas.width, canvas.height] = [Math.round(wide * ratio), Math.round(high * ratio)];
    if (!this.tick.checked || !this.items.length || !wide) return;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.lineJoin = "round";
    const last = (i) => (i === this.chosen ? 2 : i === this.pointed ? 1 : 0);
    const order = this.items.map((_, i) => i).sort((a, b) => last(a) - last(b));
    const shapes = order.filter((i) => last(i) || !this.plane || !this.isCovered(i));
    for (const i of shapes) this.outline(context, i, wide, high);
    const occupied = []; // rectangles of the drawn names; the selected one is drawn first
    for (const i of shapes.reverse()) {
      if (last(i) || (!this.plane && this.items.length <= NAMED)) this.name(context, i, wide, high, occupied);
    }
  }

  /** Check whether other objects cover the pixels of this one: a class by its regions, the background by all others. */
  isCovered(i) {
    const { label, whole, ground } = this.items[i];
    return ground || (whole && this.items.some((other) => other.label === label && !other.whole));
  }

  outline(context, i, wide, high) {
    const { box, color } = this.items[i],
      [left, top, right, bottom] = box;
    const width = i === this.chosen ? 3.5 : i === this.pointed ? 2.5 : 1.5,
      inset = width / 2 + 1;
    let path = new Path2D();
    if (this.plane) path = this.border(i, wide / this.plane.w, high / this.plane.h);
    else {
      const [x, y] = [Math.max(inset, left * wide), Math.max(inset, top * high)];
      path.rect(x, y, Math.min(wide - inset, right * wide) - x, Math.min(high - inset, bottom * high) - y);
    }
    const stroke = (ink, lineWidth) => {
      Object.assign(context, { strokeStyle: ink, lineWidth });
      context.stroke(path);
    };
    stroke(HALO, width + 2);
    stroke(CLASS_COLORS[color], width);
  }

  /** Return the edges between a region and its neighbors, without the image border. */
  border(i, across, down) {
    const { h, w, at } = this.plane,
      path = new Path2D();
    const inside = Array.from({ length: this.items.length + 1 }, (_, k) => this.contains(i, k - 1));
    for (let y = 0, p = 0; y < h; y++) {
      for (let x = 0; x < w; x++, p++) {
        if (x && inside[at[p]] !== inside[at[p - 1]]) {
          path.moveTo(x * across, y * down);
          path.lineTo(x * across, (y + 1) * down);
        }
        if (y && inside[at[p]] !== inside[at[p - w]]) {
          path.moveTo(x * across, y * down);
          path.lineTo((x + 1) * across, y * down);
        }
      }
    }
    return path;
  }

  /** Draw the name above its box, unless it would overlap another name. */
  name(context, i, wide, high, occupied) {
    const { box, color, name, share } = this.items[i],
      [left, top] = box;
    const text = `${name} ${formatShare(share)}`;
    context.font = `${i === this.chosen ? "600 " : ""}${FONT}px system-ui, sans-serif`;
    const width = context.measureText(text).width + 14,
      height = FONT + 8;
    const x = Math.max(0, Math.min(wide - width, left * wide));
    const y = top * high >= height ? top * high - height : Math.min(high - height, top * high);
    if (occupied.some(([l, t, w, h]) => x < l + w && l < x + width && y < t + h && t < y + height)) return;
    occupied.push([x, y, width, height]);
    context.fillStyle = HALO;
    context.fillRect(x, y, width, height);
    context.fillStyle = CLASS_COLORS[color];
    context.fillRect(x, y, 4, height);
    context.fillStyle = "#fff";
    context.textBaseline = "middle";
    context.fillText(text, x + 9, y + height / 2 + 0.5);
  }
}
