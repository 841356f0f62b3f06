// The stages below the blocks: name, resolution and channels, and a map where the stages can be compared.
import { blockOf } from "./network.js";
import { SIDE, thumbnail } from "./shapes.js";
import { loadImage } from "../drawing/surface.js";
import { make } from "../wire.js";

/**
 * Create the label of a stage.
 * @param {object} network
 * @param {[number, number, number]} stage first and last block, and whether it has a map
 * @param {(layer: number) => void} choose
 */
export function createStage(network, [first, last, mapped], choose) {
  const { out } = network.blocks[last],
    { name, height, width, channels } = network.layers[out];
  const grid = !height ? "1²" : height === width ? `${height}²` : `${height}×${width}`;
  const sizes = [grid, channels ? `×${channels}` : ""].map((text) => make("span", { text }));
  return make(
    "div",
    {
      class: "hl-rail-stage",
      "aria-hidden": "true",
      "data-first": first,
      "data-last": last,
      title: name,
      onclick: () => choose(out),
    },
    ...(mapped ? [make("div", { class: "hl-rail-maps" })] : []),
    make("div", { class: "hl-rail-text" }, make("code", { text: name }), make("div", {}, ...sizes)),
  );
}

/**
 * Draw the maps of an answer over the image, each in its stage.
 * @param {Element[]} stages from `createStage`
 * @param {object} network
 * @param {{stages: {layer: string, map: object}[], crop?: {src: string}}} value
 * @param {(layer: number) => void} choose
 */
export async function drawStageMaps(stages, network, value, choose) {
  const canvases = value.stages.map(({ layer, map }) => {
    const k = network.names[layer],
      block = k === undefined ? -1 : blockOf(network, k);
    const onclick = (event) => {
      event.stopPropagation();
      choose(k);
    };
    const canvas = make("canvas", { width: SIDE, height: SIDE, "data-layer": layer, onclick });
    const stage = stages.find(({ dataset: { first, last } }) => block >= first && block <= last);
    stage?.querySelector(".hl-rail-maps")?.append(canvas);
    return [canvas, map];
  });
  const image = value.crop ? await loadImage(value.crop.src) : null;
  for (const [canvas, map] of canvases) thumbnail(canvas, image, map);
}

/** Remove the maps of all stages. */
export function clearStageMaps(stages) {
  for (const stage of stages) stage.querySelector(".hl-rail-maps")?.replaceChildren();
}

/** Hide the texts that do not fit below their stage. */
export function hideLongTexts(stages) {
  const texts = stages.flatMap((stage) => [...stage.querySelectorAll(".hl-rail-text > *")]);
  for (const text of texts) text.hidden = false;
  for (const text of texts.filter((each) => each.scrollWidth > each.parentElement.parentElement.clientWidth))
    text.hidden = true;
}
