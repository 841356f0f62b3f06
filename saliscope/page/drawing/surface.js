// An image with a map over it on one canvas, at the resolution of the screen.
import { draw } from "./paint.js";

const MAX_SIDE = 2560; // largest side to draw, in pixels
const IMMEDIATE = 1024; // largest side to draw immediately, in pixels
const SKETCH = 288; // largest side while scrubbing through maps at 60 frames per second
const PAUSE = 150; // milliseconds without a change before drawing at full resolution
const DEFAULT_SIDE = 512; // side of a map without an image
const MIN_CELL = 5; // minimum cell size for drawing cell edges, in CSS pixels

/** Image, overlay and map as separate layers, each drawn once; `Surface.mix` only blends them. */
class Layers {
  constructor() {
    this.photo = document.createElement("canvas");
    this.drawn = document.createElement("canvas");
    this.plain = document.createElement("canvas");
    this.edges = false;
  }

  size(width, height) {
    for (const each of [this.photo, this.drawn]) [each.width, each.height] = [width, height];
    this.plain.width = 0; // drawn on demand
  }
}

export class Surface {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {(() => any) | null} repaint called after the canvas has got another size
   */
  constructor(canvas, repaint = null) {
    this.canvas = canvas;
    this.image = null;
    this.rendering = null;
    this.own = new Layers();
    this.faded = null;
    this.timer = 0;
    this.mixed = [1, {}];
    this.layers = this.own;
    if (repaint) new ResizeObserver(() => this.fit() && repaint()).observe(canvas);
  }

  /** Height divided by width. */
  get ratio() {
    return this.image ? this.image.naturalHeight / this.image.naturalWidth : 1;
  }

  /** Match the canvas size to its size on the screen; returns false if it already matches. */
  fit() {
    const across = this.canvas.getBoundingClientRect().width * (window.devicePixelRatio || 1);
    const wide = Math.round(across) || (this.image ? this.image.naturalWidth : DEFAULT_SIDE);
    const width = Math.max(1, Math.min(wide, MAX_SIDE)),
      height = Math.max(1, Math.round(width * this.ratio));
    if (this.canvas.width === width && this.canvas.height === height) return false;
    [this.canvas.width, this.canvas.height] = [width, height];
    return true;
  }

  /** Draw image and overlay once: a large surface at low resolution first, at full resolution after a pause. */
  paint(rendering) {
    this.rendering = rendering;
    this.layers = this.own;
    const whole = this.renderUpTo(IMMEDIATE, this.own);
    this.schedule(whole ? null : () => this.render(this.own, this.canvas.width, this.canvas.height, true));
  }

  /** Draw a map at low resolution, for scrubbing. */
  sketch(rendering) {
    const { rendering: shown } = this,
      layers = new Layers();
    this.rendering = rendering;
    this.renderUpTo(SKETCH, layers);
    this.rendering = shown;
    return layers;
  }

  /** Show a sketch, and draw it at full resolution after a pause. */
  use(rendering, layers) {
    Object.assign(this, { rendering, layers });
    this.schedule(() => this.paint(rendering));
  }

  /** Show a sketch that fades from the layers of another one; `share` is its part. */
  fade(from, { rendering, layers }, share) {
    const { width, height } = layers.drawn;
    this.faded ??= new Layers();
    this.faded.size(width, height);
    this.faded.photo = layers.photo;
    const context = this.faded.drawn.getContext("2d");
    context.drawImage(from.drawn, 0, 0, width, height);
    context.globalAlpha = share;
    context.drawImage(layers.drawn, 0, 0);
    Object.assign(this, { rendering, layers: this.faded });
    this.schedule(null);
  }

  /** Draw with at most `most` pixels per side; returns whether this is full resolution. */
  renderUpTo(most, layers) {
    const { width, height } = this.canvas,
      share = Math.min(1, most / Math.max(width, height));
    this.render(layers, Math.max(1, Math.round(share * width)), Math.max(1, Math.round(share * height)), true);
    return share === 1;
  }

  /** Run `action` once nothing has been drawn for a while. */
  schedule(action) {
    clearTimeout(this.timer);
    this.timer = action
      ? setTimeout(() => {
          action();
          this.mix(...this.mixed);
        }, PAUSE)
      : 0;
  }

  render(layers, width, height, edges) {
    layers.size(width, height);
    layers.edges = edges && !this.rendering.smooth;
    const photo = drawImage(layers.photo, width, height, this.image);
    this.drawLayer(layers.drawn, photo.getImageData(0, 0, width, height), this.rendering, layers.edges);
  }

  drawLayer(canvas, pixels, rendering, edges) {
    const { width, height } = pixels,
      context = canvas.getContext("2d");
    draw(pixels.data, width, height, rendering);
    context.putImageData(pixels, 0, 0);
    const ratio = width / (this.canvas.clientWidth || width),
      wide = Math.max(1, Math.round(ratio));
    if (!edges || width / rendering.w < MIN_CELL * ratio) return;
    const drawEdges = (ink, offset) => {
      context.fillStyle = ink;
      for (let k = 1; k < rendering.w; k++)
        context.fillRect(Math.round((k * width) / rendering.w) - wide + offset, 0, wide, height);
      for (let k = 1; k < rendering.h; k++)
        context.fillRect(0, Math.round((k * height) / rendering.h) - wide + offset, width, wide);
    };
    drawEdges("rgba(0, 0, 0, .4)", 0);
    drawEdges("rgba(255, 255, 255, .4)", wide);
  }

  /** Return the map without the image. */
  mapLayer(layers) {
    const { plain, drawn } = layers,
      { width, height } = drawn;
    if (plain.width !== width || plain.height !== height) {
      [plain.width, plain.height] = [width, height];
      const pixels = plain.getContext("2d").createImageData(width, height);
      for (let p = 0; p < pixels.data.length; p++) pixels.data[p] = p % 4 < 3 ? 128 : 255;
      this.drawLayer(plain, pixels, { ...this.rendering, mapOnly: true }, layers.edges);
    }
    return plain;
  }

  /**
   * Blend the image (opacity 0) and the overlay (1).
   *
   * `mode`: "overlay", "photograph" (only the image), "map" (only the map), or "swipe": the image to the left of
   * `split`.
   */
  mix(opacity, { mode = "overlay", split = 0.5 } = {}, canvas = this.canvas, layers = this.layers) {
    if (canvas === this.canvas) this.mixed = [opacity, { mode, split }];
    const context = canvas.getContext("2d"),
      { width, height } = canvas;
    [context.globalAlpha, context.imageSmoothingQuality] = [1, "high"];
    if (mode === "map") {
      context.drawImage(this.mapLayer(layers), 0, 0, width, height);
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

  /** Draw the image without a map. */
  drawPhoto() {
    this.schedule(null);
    this.rendering = null;
    if (!this.image) return;
    const context = this.canvas.getContext("2d");
    [context.globalAlpha, context.imageSmoothingQuality] = [1, "high"];
    context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
  }

  clear() {
    this.schedule(null);
    this.rendering = null;
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  /** Create a PNG at the image's own resolution, as the library draws it. */
  async png(opacity, shown = {}) {
    const canvas = document.createElement("canvas"),
      layers = new Layers();
    [canvas.width, canvas.height] = this.image
      ? [this.image.naturalWidth, this.image.naturalHeight]
      : [DEFAULT_SIDE, DEFAULT_SIDE];
    this.render(layers, canvas.width, canvas.height, false);
    this.mix(opacity, shown, canvas, layers);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }
}

/**
 * Draw an image, or gray, on a canvas of this size.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @param {?HTMLImageElement} image
 */
export function drawImage(canvas, width, height, image) {
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#808080";
  context.fillRect(0, 0, width, height);
  if (image) context.drawImage(image, 0, 0, width, height);
  return context;
}

/**
 * Draw a map over an image, or only the image.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @param {?HTMLImageElement} image
 * @param {?import("./paint.js").Rendering} rendering
 */
export function drawOver(canvas, width, height, image, rendering) {
  const context = drawImage(canvas, width, height, image);
  if (!rendering) return;
  const pixels = context.getImageData(0, 0, width, height);
  draw(pixels.data, width, height, rendering);
  context.putImageData(pixels, 0, 0);
}

/**
 * Load an image; resolves to null if it fails.
 * @param {string} source
 * @returns {Promise<HTMLImageElement | null>}
 */
export function loadImage(source) {
  return new Promise((resolve) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => resolve(null);
    image.src = source;
  });
}
