// The maps of an answer at all blocks: as small maps over the image, and unpacked for previews.
import { unpackMap } from "../drawing/field.js";
import { paintSmall } from "../maps/small_map.js";
import { MAP } from "./geometry.js";

/** Create a canvas with the image, and the map over it if there is one. */
export function thumbnail(image, field = null) {
  const canvas = document.createElement("canvas");
  paintSmall(canvas, image, field, MAP);
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
