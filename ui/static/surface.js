// A photograph and the map over it on one canvas, in the pixels that the screen has there.
import { draw } from "./paint.js";

const LARGEST = 1536;                                    // pixels a side that are worth drawing
const EMPTY = 512;                                       // a map without a photograph

export class Surface {
  constructor(canvas) {
    Object.assign(this, { canvas, image: null, look: null, photo: document.createElement("canvas"), drawn: document.createElement("canvas") });
  }

  /** Height over width of what is shown. */
  get ratio() {
    return this.image ? this.image.naturalHeight / this.image.naturalWidth : 1;
  }

  /** Give the canvas as many pixels as its place on the screen has; false where it has them already. */
  fit() {
    const across = this.canvas.getBoundingClientRect().width * (window.devicePixelRatio || 1);
    const wide = Math.round(across) || (this.image ? this.image.naturalWidth : EMPTY);
    const width = Math.max(1, Math.min(wide, LARGEST)), height = Math.max(1, Math.round(width * this.ratio));
    if (this.canvas.width === width && this.canvas.height === height) return false;
    [this.canvas.width, this.canvas.height] = [width, height];
    return true;
  }

  /** Draw photograph and overlay once; `mix` then only blends them. */
  paint(look, width = this.canvas.width, height = this.canvas.height) {
    this.look = look;
    for (const each of [this.photo, this.drawn]) [each.width, each.height] = [width, height];
    const photo = this.photo.getContext("2d", { willReadFrequently: true });
    photo.imageSmoothingQuality = "high";
    photo.fillStyle = "#808080";
    photo.fillRect(0, 0, width, height);
    if (this.image) photo.drawImage(this.image, 0, 0, width, height);
    const pixels = photo.getImageData(0, 0, width, height);
    draw(pixels.data, width, height, look);
    this.drawn.getContext("2d").putImageData(pixels, 0, 0);
  }

  /** Blend the photograph (opacity 0) and the overlay (1). */
  mix(opacity, canvas = this.canvas) {
    const context = canvas.getContext("2d");
    context.globalAlpha = 1;
    context.drawImage(this.photo, 0, 0);
    context.globalAlpha = opacity;
    context.drawImage(this.drawn, 0, 0);
  }

  /** Draw the photograph without a map. */
  alone() {
    this.look = null;
    if (!this.image) return;
    const context = this.canvas.getContext("2d");
    [context.globalAlpha, context.imageSmoothingQuality] = [1, "high"];
    context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
  }

  clear() {
    this.look = null;
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  /** A PNG of the photograph's own size, as the library draws it. */
  async png(opacity) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = this.image ? [this.image.naturalWidth, this.image.naturalHeight] : [EMPTY, EMPTY];
    this.paint(this.look, canvas.width, canvas.height);
    this.mix(opacity, canvas);
    this.paint(this.look);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }
}

/** The picture at an address, or null. */
export function picture(source) {
  return new Promise((resolve) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => resolve(null);
    image.src = source;
  });
}
