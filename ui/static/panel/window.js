// The part of the picture that the network sees, outlined on the picture in the left column.
import { make } from "../wire.js";

const ALIKE = 0.02;                                      // of the aspect ratio: the answer is about the picture that is shown
const WHOLE = 0.004;                                     // parts of the picture that are no crop

export class Window {
  /** `id`: the element that holds the picture. */
  constructor(id) {
    Object.assign(this, { id, crop: null, host: null });
    this.mark = make("div", { class: "hl-window", role: "img", "aria-label": "The network sees the part inside this frame", hidden: true }, make("i"));
  }

  /** What the network sees: {window: [left, top, right, bottom] in parts of the picture, aspect}, or null. */
  show(crop) {
    this.crop = crop && crop.window ? crop : null;         // of pictures of one aspect ratio it is the same
    this.attach();
    this.place();
  }

  attach() {
    const host = document.getElementById(this.id);
    if (!host || host === this.host) return;
    this.host = host;
    const place = () => this.place();
    host.addEventListener("load", place, true);          // another picture: the frame waits for its answer
    new ResizeObserver(place).observe(host);
    new MutationObserver(place).observe(host, { childList: true, subtree: true, attributes: true, attributeFilter: ["src"] });
  }

  place() {
    const { host, mark, crop } = this;
    if (!host) return;
    const image = host.querySelector("img"), rect = image && image.getBoundingClientRect();
    const shown = crop && image && image.complete && image.naturalWidth && rect.width && this.fits(image);
    if (mark.hidden !== !shown) mark.hidden = !shown;
    if (!shown) return;
    if (mark.parentElement !== host) host.append(mark);
    const scale = Math.min(rect.width / image.naturalWidth, rect.height / image.naturalHeight);      // object-fit: contain or scale-down
    const wide = image.naturalWidth * scale, high = image.naturalHeight * scale, origin = host.getBoundingClientRect();
    const left = rect.left - origin.left - host.clientLeft + (rect.width - wide) / 2, top = rect.top - origin.top - host.clientTop + (rect.height - high) / 2;
    mark.style.cssText = `left:${left}px;top:${top}px;width:${wide}px;height:${high}px`;
    const [l, t, r, b] = crop.window.map((part) => Math.min(1, Math.max(0, part)));
    mark.firstElementChild.style.cssText = `left:${100 * l}%;top:${100 * t}%;width:${100 * (r - l)}%;height:${100 * (b - t)}%`;
  }

  /** Whether this may be the picture of the answer, and there is something outside the crop. */
  fits(image) {
    const { window: [left, top, right, bottom], aspect } = this.crop;
    const cropped = left > WHOLE || top > WHOLE || right < 1 - WHOLE || bottom < 1 - WHOLE;
    return cropped && Math.abs(image.naturalWidth / image.naturalHeight / aspect - 1) < ALIKE;
  }
}
