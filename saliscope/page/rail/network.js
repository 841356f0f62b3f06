// The structure of the network, as the parts of the diagram read it.
import { state } from "../store.js";
import { fill, formatValue } from "../wire.js";

/**
 * @typedef {object} Layer
 * @property {string} name
 * @property {number} height of its output; 0 without a grid
 * @property {number} width
 * @property {number} channels
 * @property {string} kind
 * @property {string} why explains why its map is not meaningful, if it is not
 * @property {string} reason the same as a short name
 * @property {boolean} selectable
 */

/**
 * Read the server's format: layers as objects, and `names`, the positions of layers by name and alias.
 * @param {Record<string, any>} network see `pack` in saliscope/compute/rail/network.py
 */
export function readNetwork({ aliases, whys, layers: rows, ...rest }) {
  const layers = rows.map(([name, height, width, channels, kind, why, reason, selectable]) => {
    return { name, height, width, channels, kind, why: whys[why], reason, selectable };
  });
  const names = { ...Object.fromEntries(layers.map(({ name }, k) => [name, k])), ...aliases };
  return { ...rest, layers, names };
}

/** Return the position of the block that contains a layer. */
export function blockOf({ blocks }, layer) {
  return blocks.findIndex(({ first, count }) => layer >= first && layer < first + count);
}

/** Describe the size of a layer's output. */
export function sizeOf(terms, { height, width, channels }) {
  const count = fill(channels === 1 ? terms.channel : terms.channels, { count: channels }),
    grid = `${height} × ${width}`;
  return height ? `${grid}, ${count}` : channels ? count : "";
}

/** Return the gradient norms of the current request, or null before they are known. */
export function currentNorms(network) {
  const found = state.rail.norms.get(state.rail.wanted);
  return found && found.model === network.model ? found : null;
}

/** Describe a layer and its gradient norm in one line. */
export function describeLayer(terms, network, k) {
  const { name, height, kind, why } = network.layers[k],
    found = currentNorms(network),
    around = network.layers[network.blocks[blockOf(network, k)].out].name;
  const parts = [name, kind];
  if (around !== name) parts.push(fill(terms.in_block, { name: around }));
  parts.push(sizeOf(terms, network.layers[k]));
  const norm = found?.norms[k];
  if (norm === 0) parts.push(fill(terms.no_gradient, { name: found.name }));
  else if (!found && state.rail.wanted && height) parts.push(terms.measuring);
  else if (norm) parts.push(fill(terms.norm, { norm: formatValue(norm), name: found.name }));
  return parts.filter(Boolean).join(" · ") + (why ? `. ${why}` : "");
}
