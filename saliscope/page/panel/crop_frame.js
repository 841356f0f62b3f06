// Outlines the crop that the network receives on the image in the left column, and moves it.
import { follow, state, subscribe } from "../store.js";
import { placeOf } from "../shared/elements.js";
import { make } from "../wire.js";

const ALIKE = 0.02; // tolerance of the aspect ratio for matching answer and image
const WHOLE = 0.004; // smallest relative margin that counts as a crop

const STEP = 0.1, // of the free space, by an arrow key
  PAUSE = 400; // milliseconds without a key before the crop is used
const KEYS = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };

const clamp = (share) => Math.min(1, Math.max(0, share));

class CropFrame {
  constructor(id, label, move) {
    this.host = document.getElementById(id);
    this.move = move;
    this.crop = null;
    this.timer = 0;
    this.handle = make("i", { tabindex: 0, role: "button", "aria-label": label, title: label });
    this.mark = make("div", { class: "hl-window", hidden: true }, this.handle);
    this.handle.addEventListener("pointerdown", (event) => this.drag(event));
    this.handle.addEventListener("click", (event) => event.stopPropagation()); // the image would open a file dialog
    this.handle.addEventListener("keydown", (event) => {
      const step = KEYS[event.key];
      if (!step) return;
      event.preventDefault();
      this.shift(this.position.map((share, k) => share + step[k]));
    });
    this.host.append(this.mark);
    this.host.addEventListener("load", () => this.place(), true); // for another image, the frame waits for its answer
    subscribe(["image"], () => (this.mark.hidden = true));
  }

  /** Where the crop lies between the sides of the image, from 0 to 1. */
  get position() {
    const [left, top, right, bottom] = this.crop.window;
    return [left / (1 - right + left), top / (1 - bottom + top)].map((share) =>
      Number.isFinite(share) ? clamp(share) : 0.5,
    );
  }

  /** Show the crop at another position, and use it after a pause. */
  shift(wanted) {
    const [left, top, right, bottom] = this.crop.window,
      size = [right - left, bottom - top];
    const [x, y] = wanted.map((share, k) => (1 - size[k] > WHOLE ? clamp(share) : 0.5)),
      [l, t] = [x * (1 - size[0]), y * (1 - size[1])];
    this.crop = { ...this.crop, window: [l, t, l + size[0], t + size[1]] };
    this.place();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.move([x, y]), PAUSE);
  }

  drag(event) {
    event.preventDefault();
    event.stopPropagation();
    this.handle.focus({ preventScroll: true });
    this.handle.setPointerCapture(event.pointerId);
    const area = this.mark.getBoundingClientRect(),
      start = this.position,
      [left, top, right, bottom] = this.crop.window,
      free = [(1 - right + left) * area.width, (1 - bottom + top) * area.height];
    const onMove = ({ clientX, clientY }) => {
      const way = [clientX - event.clientX, clientY - event.clientY];
      this.shift(start.map((share, k) => (free[k] > 0 ? share + way[k] / free[k] : share)));
    };
    const controller = new AbortController(),
      { signal } = controller;
    this.handle.addEventListener("pointermove", onMove, { signal });
    for (const name of ["pointerup", "pointercancel"])
      this.handle.addEventListener(name, () => controller.abort(), { signal });
  }

  /** Show the crop {window: [left, top, right, bottom] as relative positions, aspect}, or null. */
  show(crop) {
    this.crop = crop && crop.window ? crop : null; // images with the same aspect ratio have the same crop
    this.place();
  }

  place() {
    const { mark, crop } = this,
      image = this.host.querySelector("img");
    mark.hidden = !(crop && image?.complete && image.naturalWidth && this.fits(image));
    if (mark.hidden) return;
    mark.style.setProperty("--ratio", String(image.naturalWidth / image.naturalHeight));
    this.handle.style.cssText = placeOf(crop.window.map(clamp));
  }

  /** Check whether this can be the image of the answer, and whether it is cropped. */
  fits(image) {
    const { window, aspect } = this.crop,
      [left, top, right, bottom] = window;
    const cropped = left > WHOLE || top > WHOLE || right < 1 - WHOLE || bottom < 1 - WHOLE;
    return cropped && Math.abs(image.naturalWidth / image.naturalHeight / aspect - 1) < ALIKE;
  }
}

/**
 * Keep the crop of the answer framed.
 * @param {string} id of the element with the image
 * @param {string} label
 * @param {(position: [number, number]) => void} move requests another position of the crop
 */
export function frameCrop(id, label, move) {
  const frame = new CropFrame(id, label, move);
  follow("crop", () => frame.show(state.crop));
}
