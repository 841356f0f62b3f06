// The resolution of a PNG file, which browsers do not write.
import { crc } from "./zip.js";

const HEADER = 33; // bytes of the signature and the first chunk

/**
 * Add the resolution to a PNG.
 * @param {Blob} blob
 * @param {number} dpi dots per inch
 * @returns {Promise<Blob>}
 */
export async function withResolution(blob, dpi) {
  const chunk = new Uint8Array(21),
    view = new DataView(chunk.buffer),
    perMeter = Math.round(dpi / 0.0254);
  view.setUint32(0, 9);
  chunk.set(new TextEncoder().encode("pHYs"), 4);
  view.setUint32(8, perMeter);
  view.setUint32(12, perMeter);
  chunk[16] = 1; // the unit is the meter
  view.setUint32(17, crc(chunk.subarray(4, 17)));
  return new Blob([blob.slice(0, HEADER), chunk, blob.slice(HEADER)], { type: "image/png" });
}
