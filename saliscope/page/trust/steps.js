// Shows the image with the pixels of a step deleted or inserted, over the large image, while the pointer is on a curve.
import { loadImage } from "../drawing/surface.js";
import { cover } from "../overlay/overlay.js";
import { paintPixels } from "../drawing/paint.js";
import { bytes, make } from "../wire.js";

const SMALL = 168; // CSS pixels of the copy next to the curves

/**
 * Return 1 for each pixel that is blurred after step k.
 * @param {Uint8Array} order step at which each pixel is deleted or inserted
 * @param {"deletion" | "insertion"} metric
 * @param {number} k
 * @returns {Uint8Array}
 */
export function blurredPixels(order, metric, k) {
  return Uint8Array.from(order, (step) => Number(metric === "deletion" ? step <= k : step > k));
}

export class Steps {
  /** @param {string} of id of the part with the image */
  constructor(of) {
    this.of = of;
    this.key = null;
    this.known = null;
    this.order = null;
    this.image = null;
    this.large = make("canvas", { class: "hl-trust-large", "aria-hidden": "true", hidden: true });
    this.chip = make("p", { class: "hl-recalled hl-trust-chip", hidden: true });
    this.small = make("canvas", { class: "hl-trust-small", "aria-hidden": "true", hidden: true });
    this.mask = document.createElement("canvas");
    this.soft = document.createElement("canvas");
  }

  /** Set the result whose steps are shown, and decode its blurred image ahead of time. */
  use(key, known) {
    this.leave();
    Object.assign(this, { key, known, order: known ? bytes(known.order.b64) : null, image: null });
    if (known)
      loadImage(known.blurred.src).then((image) => {
        if (this.known === known) this.image = image;
      });
  }

  /**
   * Show the image after step `k` of "deletion" or "insertion", labeled `text`. If the large image is out of view, show
   * a small copy in a corner of the window away from `host`, the curve.
   */
  show(metric, k, text, host) {
    const { known, image } = this,
      map = cover(this.of, this.large, this.chip);
    // The page may show another (cached) map by now.
    if (!known || !image || !map?.image || map.key !== this.key) return;
    const { image: photo, width, height, bounds } = map;
    this.drawMask(metric, k);
    this.draw(this.large, width, height, photo, image);
    this.chip.textContent = text;
    this.large.hidden = this.chip.hidden = false;
    const away = bounds.bottom < 80 || bounds.top > window.innerHeight - 80;
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

  /** Draw the mask of the blurred pixels at the network's input size. */
  drawMask(metric, k) {
    const { h, w } = this.known.order,
      gone = blurredPixels(this.order, metric, k);
    paintPixels(this.mask, w, h, (pixels) => gone.forEach((is, i) => (pixels[4 * i + 3] = 255 * is)));
  }

  draw(canvas, width, height, photo, image) {
    for (const each of [canvas, this.soft]) [each.width, each.height] = [width, height];
    const soft = this.soft.getContext("2d"),
      context = canvas.getContext("2d");
    soft.imageSmoothingEnabled = false; // whole pixels of the network's input
    soft.drawImage(this.mask, 0, 0, width, height);
    soft.imageSmoothingEnabled = true;
    soft.globalCompositeOperation = "source-in";
    soft.drawImage(image, 0, 0, width, height);
    context.imageSmoothingQuality = "high";
    context.drawImage(photo, 0, 0, width, height);
    context.drawImage(this.soft, 0, 0);
  }
}
