// All components of a factorization in one image over the map: each in its color, which the thumbnails show.
import { CLASS_COLORS } from "../drawing/objects.js";
import { LUMA, RULE } from "../drawing/constants.js";
import { enlarge } from "../drawing/field.js";
import { cover } from "../overlay/overlay.js";
import { state } from "../store.js";
import { bytes, make } from "../wire.js";

const MAP = "hl-overlay";
const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

export class Components {
  /** @param {() => void} changed called after this image is shown or hidden by the user */
  constructor(changed) {
    this.changed = changed;
    this.value = null;
    this.image = null;
    this.isShown = false;
    this.canvas = make("canvas", { class: "hl-components", role: "img", hidden: true });
    this.note = make("p", { class: "hl-quiet", hidden: true });
  }

  /** Set the planes of an answer and its image; null for a map that is not a factorization. */
  set(value, image = null) {
    const isNew = Boolean(value) && !this.value;
    Object.assign(this, { value, image });
    if (isNew || !value) this.isShown = Boolean(value);
    this.draw();
  }

  show(on) {
    this.isShown = on && Boolean(this.value);
    this.draw();
    this.changed();
  }

  /** The button of this image, in front of the thumbnails. */
  get tiles() {
    if (!this.value) return [];
    const { all, all_alt: label } = this.value.words,
      canvas = make("canvas", { class: "hl-channels-tile", width: 64, height: 64, "aria-hidden": "true" });
    this.paint(canvas);
    const onclick = () => this.show(true);
    const attributes = { role: "option", "aria-label": label, onclick };
    return [make("button", attributes, canvas, make("b", { text: all }))];
  }

  /** Return the swatch of a component, or nothing. */
  swatch(plane) {
    return this.value ? [make("i", { class: "hl-swatch", style: `background:${CLASS_COLORS[plane]}` })] : [];
  }

  /** Draw over a new map, and hide it during the preview of another layer. */
  follow() {
    const id = state.drawn["hl-overlay"];
    if (this.isShown) this.canvas.hidden = Boolean(state.preview);
    if (id !== this.drawn) this.draw();
    this.drawn = id;
  }

  draw() {
    this.canvas.hidden = this.note.hidden = !this.isShown;
    if (!this.isShown) return;
    const map = cover(MAP, this.canvas);
    if (!map) return;
    [this.canvas.width, this.canvas.height] = [map.width, map.height];
    this.canvas.setAttribute("aria-label", this.value.words.all_alt);
    this.note.textContent = this.value.words.all_note;
    this.paint(this.canvas, map.image || this.image); // the map may still be loading
  }

  /** Mix the colors of the components over the gray image; the weight of a color is its share of its maximum. */
  paint(canvas, image = this.image) {
    const { width, height } = canvas,
      context = canvas.getContext("2d", { willReadFrequently: true }),
      { cell, count, planes } = this.value,
      packed = bytes(planes),
      [h, w] = cell;
    context.drawImage(image, 0, 0, width, height);
    const pixels = context.getImageData(0, 0, width, height),
      { data } = pixels,
      colors = CLASS_COLORS.slice(0, count).map(parse);
    const fields = colors.map((_, k) => {
      const values = Float32Array.from(packed.subarray(k * h * w, (k + 1) * h * w), (value) => value / 255);
      return enlarge({ values, h, w }, width, height);
    });
    for (let i = 0, p = 0; i < width * height; i++, p += 4) {
      let sum = 0,
        most = 0;
      for (const field of fields) [sum, most] = [sum + field[i], Math.max(most, field[i])];
      const gray = RULE.coarse_light * (LUMA[0] * data[p] + LUMA[1] * data[p + 1] + LUMA[2] * data[p + 2]),
        weight = RULE.strength * most ** RULE.curve;
      for (let c = 0; c < 3; c++) {
        const mixed = fields.reduce((total, field, k) => total + field[i] * colors[k][c], 0) / (sum || 1);
        data[p + c] = gray + (mixed - gray) * weight;
      }
    }
    context.putImageData(pixels, 0, 0);
  }
}
