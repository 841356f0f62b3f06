// Outlines the crop that the network receives on the image in the left column.
import { state, subscribe } from "../store.js";
import { make } from "../wire.js";

const ALIKE = 0.02; // tolerance of the aspect ratio for matching answer and image
const WHOLE = 0.004; // smallest relative margin that counts as a crop

class CropFrame {
  constructor(id, label) {
    Object.assign(this, { id, crop: null, host: null });
    this.mark = make("div", { class: "hl-window", role: "img", "aria-label": label, hidden: true }, make("i"));
  }

  /** Show the crop {window: [left, top, right, bottom] as relative positions, aspect}, or null. */
  show(crop) {
    this.crop = crop && crop.window ? crop : null; // images with the same aspect ratio have the same crop
    this.attach();
    this.place();
  }

  attach() {
    const host = document.getElementById(this.id);
    if (!host || host === this.host) return;
    this.host = host;
    const place = () => this.place();
    host.addEventListener("load", place, true); // for another image, the frame waits for its answer
    new ResizeObserver(place).observe(host);
    new MutationObserver(place).observe(host, {
      childList: true,
      subtree: true,
      attributes: true,
      attributeFilter: ["src"],
    });
  }

  place() {
    const { host, mark, crop } = this;
    if (!host) return;
    const image = host.querySelector("img"),
      rect = image && image.getBoundingClientRect();
    const shown = crop && image && image.complete && image.naturalWidth && rect.width && this.fits(image);
    if (mark.hidden !== !shown) mark.hidden = !shown;
    if (!shown) return;
    if (mark.parentElement !== host) host.append(mark);
    // object-fit: contain or scale-down
    const scale = Math.min(rect.width / image.naturalWidth, rect.height / image.naturalHeight);
    const wide = image.naturalWidth * scale,
      high = image.naturalHeight * scale,
      origin = host.getBoundingClientRect();
    const left = rect.left - origin.left - host.clientLeft + (rect.width - wide) / 2,
      top = rect.top - origin.top - host.clientTop + (rect.height - high) / 2;
    mark.style.cssText = `left:${left}px;top:${top}px;width:${wide}px;height:${high}px`;
    const [l, t, r, b] = crop.window.map((part) => 100 * Math.min(1, Math.max(0, part)));
    mark.firstElementChild.style.cssText = `left:${l}%;top:${t}%;width:${r - l}%;height:${b - t}%`;
  }

  /** Check whether this can be the image of the answer, and whether it is cropped. */
  fits(image) {
    const {
      window: [left, top, right, bottom],
      aspect,
    } = this.crop;
    const cropped = left > WHOLE || top > WHOLE || right < 1 - WHOLE || bottom < 1 - WHOLE;
    return cropped && Math.abs(image.naturalWidth / image.naturalHeight / aspect - 1) < ALIKE;
  }
}

/**
 * Keep the crop of the answer framed.
 * @param {string} id the component that contains the image
 * @param {string} label
 */
export function frameCrop(id, label) {
  const frame = new CropFrame(id, label);
  subscribe(["crop"], () => frame.show(state.crop));
  if (state.crop) frame.show(state.crop);
}
