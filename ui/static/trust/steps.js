// The photograph with the pixels of a step deleted or inserted, laid over the big picture while the pointer is on a curve.
import { picture } from "../drawing/surface.js";
import { bytes, make } from "../wire.js";

const SMALL = 168;                                       // CSS pixels of the copy beside the curves

/** Which of the pixels [H, W] are blurred after step k: 1 where they are; `order` is the step at which each goes or comes. */
export function hidden(order, metric, k) {
  return Uint8Array.from(order, (step) => Number(metric === "deletion" ? step <= k : step > k));
}

export class Steps {
  /** `of` is the id of the picture's component. */
  constructor(of) {
    Object.assign(this, { of, key: null, known: null, order: null, image: null });
    this.large = make("canvas", { class: "hl-trust-large", "aria-hidden": "true", hidden: true });
    this.chip = make("p", { class: "hl-recalled hl-trust-chip", hidden: true });
    this.small = make("canvas", { class: "hl-trust-small", "aria-hidden": "true", hidden: true });
    [this.mask, this.soft] = [document.createElement("canvas"), document.createElement("canvas")];
  }

  /** The verdict whose steps are shown; its blurred picture is decoded before it is needed. */
  use(key, known) {
    this.leave();
    Object.assign(this, { key, known, order: known ? bytes(known.order.b64) : null, image: null });
    if (known) picture(known.blurred.src).then((image) => { if (this.known === known) this.image = image; });
  }

  /** The photograph after step `k` of "deletion" or "insertion"; `text` says it. A small copy where the big picture is out
   *  of sight, in the corner of the window that `host`, the curve, is not in. */
  show(metric, k, text, host) {
    const { known, image } = this, frame = document.querySelector(`#${this.of} .hl-frame`);
    const asked = new CustomEvent("hl-photograph", { detail: { id: this.of, key: null, image: null } });
    document.dispatchEvent(asked);
    const { image: photo, key } = asked.detail;
    // The picture may show another map by now, one from before.
    if (!known || !image || !photo || !frame || key !== this.key) return;
    if (this.large.parentElement !== frame) frame.append(this.large, this.chip);
    this.blank(metric, k);
    const { width, height } = frame.querySelector("canvas");
    this.draw(this.large, width, height, photo, image);
    this.chip.textContent = text;
    this.large.hidden = this.chip.hidden = false;
    const inSight = frame.getBoundingClientRect();
    const away = inSight.bottom < 80 || inSight.top > window.innerHeight - 80;
    this.small.hidden = !away;
    if (away) {
      this.small.classList.toggle("hl-low", host.getBoundingClientRect().top < SMALL + 24);
      const wide = Math.round(SMALL * (window.devicePixelRatio || 1));
      this.draw(this.small, wide, Math.round((wide * height) / width), photo, image);
    }
    Object.assign(this.large.dataset, { metric, step: k });
  }

  leave() {
    this.large.hidden = this.chip.hidden = this.small.hidden = true;
  }

  /** The mask of the blurred pixels, at the network's size. */
  blank(metric, k) {
    const { h, w } = this.known.order, gone = hidden(this.order, metric, k);
    [this.mask.width, this.mask.height] = [w, h];
    const context = this.mask.getContext("2d"), pixels = context.createImageData(w, h);
    for (let i = 0; i < gone.length; i++) pixels.data[4 * i + 3] = 255 * gone[i];
    context.putImageData(pixels, 0, 0);
  }

  draw(canvas, width, height, photo, image) {
    for (const each of [canvas, this.soft]) [each.width, each.height] = [width, height];
    const soft = this.soft.getContext("2d"), context = canvas.getContext("2d");
    soft.imageSmoothingEnabled = false;                  // whole pixels of the network's input
    soft.drawImage(this.mask, 0, 0, width, height);
    soft.imageSmoothingEnabled = true;
    soft.globalCompositeOperation = "source-in";
    soft.drawImage(image, 0, 0, width, height);
    context.imageSmoothingQuality = "high";
    context.drawImage(photo, 0, 0, width, height);
    context.drawImage(this.soft, 0, 0);
  }
}
