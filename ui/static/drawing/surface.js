// A photograph and the map over it on one canvas, in the pixels that the screen has there.
import { draw } from "./paint.js";

const LARGEST = 2560;                                    // pixels a side that are worth drawing
const AT_ONCE = 1024;                                    // pixels a side that are drawn before the rest
const SKETCH = 288;                                      // and while one scrubs through maps, 60 a second
const REST = 150;                                        // milliseconds without a change, before every pixel is drawn
const EMPTY = 512;                                       // a map without a photograph
const EDGE = 5;                                          // CSS pixels of a cell from which its edges are drawn

/** Photograph, overlay and map alone, drawn once; `Surface.mix` only blends them. */
class Layers {
  constructor() {
    for (const name of ["photo", "drawn", "plain"]) this[name] = document.createElement("canvas");
  }

  size(width, height) {
    for (const each of [this.photo, this.drawn]) [each.width, each.height] = [width, height];
    this.plain.width = 0;                                // drawn when it is asked for
  }
}

export class Surface {
  constructor(canvas) {
    Object.assign(this, { canvas, image: null, look: null, own: new Layers(), later: 0, mixed: [1, {}] });
    this.layers = this.own;
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

  /** Draw photograph and overlay once; of a large surface few pixels at once and the others a moment later. */
  paint(look) {
    this.look = look;
    this.layers = this.own;
    const whole = this.part(AT_ONCE, this.own, true);
    this.finish(whole ? null : () => this.render(this.own, this.canvas.width, this.canvas.height, true));
  }

  /** A map that others follow soon, with few pixels. */
  sketch(look) {
    const { look: shown } = this, layers = new Layers();
    this.look = look;
    this.part(SKETCH, layers, true);
    this.look = shown;
    return layers;
  }

  /** Show a sketch; all pixels after a rest. */
  use(look, layers) {
    Object.assign(this, { look, layers });
    this.finish(() => this.paint(look));
  }

  /** Draw with at most so many pixels a side; whether those are all. */
  part(most, layers, edges) {
    const { width, height } = this.canvas, share = Math.min(1, most / Math.max(width, height));
    this.render(layers, Math.max(1, Math.round(share * width)), Math.max(1, Math.round(share * height)), edges);
    return share === 1;
  }

  /** Do something once nothing else has been drawn for a while. */
  finish(rest) {
    clearTimeout(this.later);
    this.later = rest ? setTimeout(() => { rest(); this.mix(...this.mixed); }, REST) : 0;
  }

  render(layers, width, height, edges) {
    layers.size(width, height);
    layers.edges = edges && !this.look.smooth;
    const photo = layers.photo.getContext("2d", { willReadFrequently: true });
    photo.imageSmoothingQuality = "high";
    photo.fillStyle = "#808080";
    photo.fillRect(0, 0, width, height);
    if (this.image) photo.drawImage(this.image, 0, 0, width, height);
    this.lay(layers.drawn, photo.getImageData(0, 0, width, height), this.look, layers.edges);
  }

  lay(canvas, pixels, look, edges) {
    const { width, height } = pixels, context = canvas.getContext("2d");
    draw(pixels.data, width, height, look);
    context.putImageData(pixels, 0, 0);
    const ratio = width / (this.canvas.clientWidth || width), wide = Math.max(1, Math.round(ratio));
    if (!edges || width / look.w < EDGE * ratio) return;
    for (const [ink, beside] of [["rgba(0, 0, 0, .4)", 0], ["rgba(255, 255, 255, .4)", wide]]) {
      context.fillStyle = ink;
      for (let k = 1; k < look.w; k++) context.fillRect(Math.round((k * width) / look.w) - wide + beside, 0, wide, height);
      for (let k = 1; k < look.h; k++) context.fillRect(0, Math.round((k * height) / look.h) - wide + beside, width, wide);
    }
  }

  /** The map without the photograph. */
  bare(layers) {
    const { plain, drawn: { width, height } } = layers;
    if (plain.width !== width || plain.height !== height) {
      [plain.width, plain.height] = [width, height];
      const pixels = plain.getContext("2d").createImageData(width, height);
      for (let p = 0; p < pixels.data.length; p++) pixels.data[p] = p % 4 < 3 ? 128 : 255;
      this.lay(plain, pixels, { ...this.look, alone: true }, layers.edges);
    }
    return plain;
  }

  /** Blend the photograph (opacity 0) and the overlay (1).
   *
   * `mode`: "overlay", "photograph" or "map" alone, or "swipe", with the photograph on the left of `split`.
   */
  mix(opacity, { mode = "overlay", split = 0.5 } = {}, canvas = this.canvas, layers = this.layers) {
    if (canvas === this.canvas) this.mixed = [opacity, { mode, split }];
    const context = canvas.getContext("2d"), { width, height } = canvas;
    [context.globalAlpha, context.imageSmoothingQuality] = [1, "high"];
    if (mode === "map") {
      context.drawImage(this.bare(layers), 0, 0, width, height);
      return;
    }
    context.drawImage(layers.photo, 0, 0, width, height);
    if (mode === "photograph") return;
    const left = mode === "swipe" ? Math.round(split * width) : 0;
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height);
    context.clip();
    context.globalAlpha = opacity;
    context.drawImage(layers.drawn, 0, 0, width, height);
    context.restore();
  }

  /** Draw the photograph without a map. */
  alone() {
    this.finish(null);
    this.look = null;
    if (!this.image) return;
    const context = this.canvas.getContext("2d");
    [context.globalAlpha, context.imageSmoothingQuality] = [1, "high"];
    context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
  }

  clear() {
    this.finish(null);
    this.look = null;
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  /** A PNG of the photograph's own size, as the library draws it. */
  async png(opacity, shown = {}) {
    const canvas = document.createElement("canvas"), layers = new Layers();
    [canvas.width, canvas.height] = this.image ? [this.image.naturalWidth, this.image.naturalHeight] : [EMPTY, EMPTY];
    this.render(layers, canvas.width, canvas.height, false);
    this.mix(opacity, shown, canvas, layers);
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
