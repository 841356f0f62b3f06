// The tables of the comparison of two models.
import { unpackMap } from "../drawing/field.js";
import { loadImage } from "../drawing/surface.js";
import { paintSmall } from "../maps/small_map.js";
import { makeRow, makeTable } from "../shared/elements.js";
import { fill, make } from "../wire.js";

const SIDE = 72; // CSS pixels of the longer side of a map

const section = (title, ...parts) =>
  make("section", { "aria-label": title }, make("h2", { class: "hl-title", text: title }), ...parts);

const NUMBER = { class: "hl-number" };

/** Create a section with a table that scrolls, below other parts. */
function tableSection(title, parts, table, kind = "") {
  const scroll = { class: `hl-models-scroll ${kind}`, tabindex: 0, role: "region", "aria-label": title };
  return section(title, ...parts, make("div", scroll, table));
}

/** Create a canvas with a map over the crop of its model. */
function mapCell(terms, { name, crops, maps }, model, k) {
  const label = fill(terms.maps, { name, model });
  const canvas = make("canvas", { class: "hl-models-map", role: "img", "aria-label": label, width: 1, height: 1 });
  loadImage(crops[k]).then((image) => paintSmall(canvas, image, unpackMap(maps[k]), SIDE));
  return make("td", {}, canvas);
}

/** Draw the maps and predictions of both models for each image. */
export function drawImages(terms, { rows, notes, models }) {
  const titles = terms.columns.map((text, k) => (k === 3 || k === 4 ? `${text}: ${models[k - 3]}` : text)),
    last = { text: titles.pop(), ...NUMBER };
  const drawn = rows.map((row) => {
    const name = make("th", { scope: "row" }, make("img", { src: row.crops[0], alt: row.name, title: row.name }));
    const cells = [
      ...models.map((model, k) => mapCell(terms, row, model, k)),
      row.a,
      row.b,
      make("td", { class: "hl-models-same", text: row.same ? terms.same : terms.differs }),
      make("td", { class: row.unknown ? "hl-models-unknown" : "hl-number", text: row.correlation }),
    ];
    return makeRow(name, cells, { "data-same": String(row.same) });
  });
  const texts = [terms.maps_about, ...notes].map((text) => make("p", { class: "hl-quiet", text }));
  return tableSection(terms.predictions, texts, makeTable([...titles, last], drawn));
}

/** Draw the similarity of each stage of A with each of B. */
export function drawSimilarity(terms, { similarity, similarity_notes, layers }) {
  const notes = similarity_notes.map((text) => make("p", { class: "hl-quiet", text }));
  if (!similarity) return section(terms.similarity, ...notes);
  const cell = ({ text, estimate, share }) => {
    const title = estimate && fill(terms.estimate, { value: estimate });
    return make("td", { ...NUMBER, text, title, style: `--share: ${Math.round(100 * share)}%` });
  };
  const rows = similarity.map((row, k) => makeRow(layers[0][k], row.map(cell))),
    about = make("p", { class: "hl-quiet", text: terms.similarity_about }),
    table = makeTable(["", ...layers[1]], rows, { class: "hl-models-matrix" });
  return tableSection(terms.similarity, [about, ...notes], table);
}

/** Draw the relative differences of the layers, or why there are none. */
export function drawDifferences(terms, { divergence, differences, first }) {
  const says = make("p", { class: "hl-models-first", text: divergence });
  if (!differences.length) return section(terms.differences, says);
  const rows = differences.map(([name, text]) =>
    makeRow(name, [make("td", { ...NUMBER, text })], { "data-first": String(name === first) }),
  );
  const table = makeTable([terms.layer, { text: terms.difference, ...NUMBER }], rows);
  return tableSection(terms.differences, [says], table, "hl-models-layers");
}
