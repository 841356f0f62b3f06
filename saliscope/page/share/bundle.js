// A bundle: a zip with everything a map was computed from, which `saliscope replay` recomputes. The server provides
// the image without metadata, hashes and versions; map, figure and display settings come from the page.
import { verdictOf } from "../drawing/verdict.js";
import { fileAddress } from "../shared/stored_images.js";
import { floats, encodeNpy } from "../wire.js";
import { zip } from "./formats/zip.js";

const waiting = new Map();
let send = null,
  count = 0;

function requestServerPart(records, second, terms) {
  return new Promise((resolve, reject) => {
    if (!send) return reject(new Error(terms.not_ready));
    waiting.set(++count, { resolve, reject });
    send({ number: count, records, second });
  });
}

async function fetchImage(path, terms) {
  const answer = await fetch(new URL(fileAddress(path), document.baseURI));
  if (!answer.ok) throw new Error(terms.no_image);
  return answer.blob();
}

/**
 * Create a zip of the maps of one image.
 * @param {{value: Record<string, any>, view: Record<string, any>, figure: Blob, name?: string}[]} pieces answers with their display settings and
 *   figures, and with names if there are several
 * @param {Record<string, any>} terms
 * @param {Record<string, Blob | string>} more other files by name
 * @param {?Record<string, any>} second the second image of an edit, as the server gets it
 * @returns {Promise<Blob>}
 */
export async function bundle(pieces, terms, more = {}, second = null) {
  const records = pieces.map(({ value }) => value.record),
    { upload, second_upload: other, ...about } = await requestServerPart(records, second, terms);
  const images = await Promise.all([upload, other].filter(Boolean).map((path) => fetchImage(path, terms)));
  const files = about.second ? { [about.second.file]: images[1] } : {},
    maps = pieces.map(({ value, view, figure, name }) => {
      const folder = name ? `${name}/` : "",
        entry = { map: `${folder}map.npy`, figure: `${folder}figure.png` };
      files[entry.map] = encodeNpy(floats(value.map), [value.map.h, value.map.w]);
      files[entry.figure] = figure;
      const answer = { ...value.record.answer, verdict: verdictOf(value) };
      return { ...(name ? { name } : {}), files: entry, ...value.record, answer, view };
    });
  const text = JSON.stringify({ ...about, made: new Date().toISOString(), maps }, null, 2);
  return zip({ "bundle.json": `${text}\n`, [about.photograph.file]: images[0], ...files, ...more });
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  send = (data) => trigger("submit", data);
  return (value) => {
    const request = value && waiting.get(value.number);
    if (!request) return;
    waiting.delete(value.number);
    if (value.refused) request.reject(new Error(value.refused));
    else request.resolve(value.part);
  };
}
