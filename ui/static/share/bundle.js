// A bundle: everything that a map was computed from, in one zip that `python app.py replay` recomputes. The server gives
// the photograph without metadata, hashes and versions; map, figure and the settings of the picture are the page's own.
import { floats, follow, npy } from "../wire.js";
import { zip } from "./zip.js";

const waiting = new Map();
let ask = null, count = 0;

function part(records) {
  return new Promise((resolve, reject) => {
    if (!ask) return reject(new Error("The page is not ready yet."));
    waiting.set(++count, { resolve, reject });
    ask({ number: count, records });
  });
}

/** A zip of the maps of one photograph: `pieces` are [{value, view, figure, name}], with an answer, how it is looked at,
 * its figure as a blob, and a name where there are several; `more` are other files by name.
 */
export async function bundle(pieces, more = {}) {
  const { upload, ...about } = await part(pieces.map(({ value }) => value.record));
  const photograph = await fetch(new URL(`gradio_api/file=${upload}`, document.baseURI));
  if (!photograph.ok) throw new Error("The photograph could not be fetched. Try again.");
  const files = {}, maps = pieces.map(({ value, view, figure, name }) => {
    const folder = name ? `${name}/` : "", entry = { map: `${folder}map.npy`, figure: `${folder}figure.png` };
    files[entry.map] = npy(floats(value.map), [value.map.h, value.map.w]);
    files[entry.figure] = figure;
    return { ...(name ? { name } : {}), files: entry, ...value.record, view };
  });
  const text = JSON.stringify({ ...about, made: new Date().toISOString(), maps }, null, 2);
  return zip({ "bundle.json": `${text}\n`, [about.photograph.file]: await photograph.blob(), ...files, ...more });
}

export function mount(element, props, trigger, watch) {
  ask = (data) => trigger("submit", data);
  follow(props, watch, ["value"], () => {
    const { value } = props, asked = value && waiting.get(value.number);
    if (!asked) return;
    waiting.delete(value.number);
    if (value.refused) asked.reject(new Error(value.refused));
    else asked.resolve(value.part);
  });
}
