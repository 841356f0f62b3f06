// The labels below the boxes: the name of each layer, and the size of the outputs once for each run of equal blocks.
import { sizeOf } from "./network.js";
import { fill, make } from "../wire.js";

const CHARACTER = 7; // pixels of a character on average
const ruler = document.createElement("canvas").getContext("2d");

/** Return the width of a text of the diagram in pixels. */
function widthOf(text) {
  ruler.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

/**
 * Shorten a layer's name to this width, keeping its end, from a dot if possible: "stages.1.0" becomes "…1.0", and
 * "denselayer5" becomes "…elayer5".
 */
function shortName(name, width) {
  const parts = name.split("."),
    ends = parts.slice(1).map((_, k) => `…${parts.slice(k + 1).join(".")}`),
    last = parts.at(-1);
  const cut = [...last].map((_, k) => `…${last.slice(k + 1)}`).slice(0, -3);
  return [name, ...ends, ...cut].find((text) => widthOf(text) <= width) ?? `…${last.slice(-3)}`;
}

/**
 * Create the labels of the input, the boxes and the class score.
 * @param {Object<string, string>} terms
 * @param {Record<string, any>} network
 * @param {import("./folding.js").Item[]} items
 * @param {{width: number}[]} sizes of the input, the boxes and the score
 * @param {number} gap
 * @param {import("./rail.js").Actions} actions
 */
export function createLabels(terms, network, items, sizes, gap, { choose, point }) {
  const { layers, blocks, input } = network,
    out = ({ last }) => blocks[last].out,
    spatial = items.map((item, at) => ({ item, at: at + 1 })).filter(({ item }) => item.spatial);
  const label = (text, name, first, last, more = {}) => {
    const node = make("div", { class: name, "aria-hidden": "true", text, ...more });
    node.style.gridColumn = `${2 * first + 1} / ${2 * last + 2}`;
    return node;
  };
  const names = spatial.map(({ item, at }) => {
    const layer = out(item),
      { name } = layers[layer];
    return label(shortName(name, sizes[at].width + gap - 4), "hl-rail-name", at, at, {
      title: name,
      onclick: () => choose(layer),
      onpointerenter: () => point(layer),
    });
  });
  const outputs = groupRuns(spatial).map((run) => {
    const size = layers[out(run[0].item)],
      [first, end] = [run[0].at, run.at(-1).at],
      width = sizes.slice(first, end + 1).reduce((sum, each) => sum + each.width + gap, 0);
    const node = label("", "hl-rail-size", first, end, { title: sizeOf(terms, size) });
    node.append(...sizeLines(terms, size, width).map((text) => make("span", { text })));
    return node;
  });
  const last = items.length + 1;
  return [
    label(terms.image, "hl-rail-name", 0, 0),
    label(`${input[0]} × ${input[1]}`, "hl-rail-size", 0, 0),
    ...names,
    ...outputs,
    label(terms.score, "hl-rail-name", last, last),
  ];
}

/** Return the size of an output as two lines of this width: height and width, and the number of channels. */
function sizeLines(terms, size, width) {
  const [grid, count] = sizeOf(terms, size).split(", ");
  if (!count) return [grid];
  const fits = count.length * CHARACTER <= width || size.channels === 1;
  return [grid, fits ? count : fill(terms.channels_short, { count: size.channels })];
}

/** Group consecutive boxes by their run. */
function groupRuns(boxes) {
  const groups = [];
  for (const box of boxes) {
    if (groups.at(-1)?.[0].item.run === box.item.run) groups.at(-1).push(box);
    else groups.push([box]);
  }
  return groups;
}
