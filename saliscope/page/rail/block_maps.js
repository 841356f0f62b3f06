// The maps of an answer at all blocks: as small maps over the image, and unpacked for previews.
import { unpackMap } from "../drawing/field.js";
import { draw, view } from "../drawing/paint.js";
import { MAP } from "./geometry.js";

const SIDE = MAP * Math.min(3, Math.ceil(window.devicePixelRatio || 1));

/** Create a canvas with the image, and the map over it if there is one. */
export function thumbnail(image, field = null) {
  const canvas = document.createElement("canvas"),
    ratio = image?.naturalWidth ? image.naturalHeight / image.naturalWidth : 1;
  canvas.width = Math.max(1, Math.round(SIDE * Math.min(1, 1 / ratio)));
  canvas.height = Math.max(1, Math.round(SIDE * Math.min(1, ratio)));
  const { width, height } = canvas,
    context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#808080";
  context.fillRect(0, 0, width, height);
  if (image) context.drawImage(image, 0, 0, width, height);
  if (!field) return canvas;
  const pixels = context.getImageData(0, 0, width, height);
  draw(pixels.data, width, height, { ...view(field), lines: false });
  context.putImageData(pixels, 0, 0);
  return canvas;
}

export class BlockMaps {
  /**
   * @param {Record<string, any>} network
   * @param {{stages: {layer: string, map: Record<string, any>}[], name: string, unit: string, score: string}} value
   * @param {?HTMLImageElement} image
   */
  constructor(network, value, image) {
    this.image = image;
    this.name = value.name;
    this.unit = value.unit;
    this.score = value.score;
    const known = value.stages.filter(({ layer }) => layer in network.names);
    this.packed = new Map(known.map(({ layer, map }) => [network.names[layer], map]));
    this.steps = new Map();
    this.canvases = new Map();
  }

  has(layer) {
    return this.packed.has(layer);
  }

  /** Return the map of a layer; the overlay stores its drawings in the same object. */
  step(layer) {
    if (!this.steps.has(layer)) this.steps.set(layer, { field: unpackMap(this.packed.get(layer)) });
    return this.steps.get(layer);
  }

  canvas(layer) {
    if (!this.canvases.has(layer)) this.canvases.set(layer, thumbnail(this.image, this.step(layer).field));
    return this.canvases.get(layer);
  }
}
