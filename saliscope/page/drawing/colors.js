// Decodes the color maps. Jet is left out because it creates edges that are not in the data.
import { bytes } from "../wire.js";
import { COLOR_MAPS } from "./constants.js";

const tables = {};

/**
 * Return the 256 colors of a color map as 768 bytes.
 * @param {string} name
 * @returns {Uint8Array}
 */
export function table(name) {
  return (tables[name] ||= bytes(COLOR_MAPS[name] || COLOR_MAPS.magma));
}
