// The tables of the comparison of two models.
import { loadImage } from "../drawing/surface.js";
import { paintMap } from "../maps/small_map.js";
import { fill, make } from "../wire.js";

const SIDE = 72; // CSS pixels of the longer side of a map

const section = (title, ...parts) =>
  make("section", { "aria-label": title }, make("h2", { class: "hl-title", text: title }), ...parts);

/** Create the head of a table; `numbers` are the columns with numbers. */
function heads(texts, numbers = []) {
  const cell = (text, k) => make("th", { scope: "col", text, class: numbers.includes(k) ? "hl-number" : "" });
  return make("tr", {}, ...texts.map(cell));
}

/** Create a canvas with a map over the crop of its model. */
function mapCell(terms, { name, crops, maps }, model, k) {
  const label = fill(terms.maps, { name, model });
  const canvas = make("canvas", { class: "hl-models-map", role: "img", "aria-label": label, width: 1, height: 1 });
  loadImage(crops[k]).then((image) => paintMap(canvas, image, maps[k], SIDE));
  return make("td", {}, canvas);
}

/** Draw the maps and predictions of both models for each image. */
export function drawImages(terms, { rows, notes, models }) {
  const columns = terms.columns.map((text, k) => (k === 3 || k === 4 ? `${text}: ${models[k - 3]}` : text));
  const body = rows.map((row) =>
    make(
      "tr",
      { "data-same": String(row.same) },
      make("th", { scope: "row" }, make("img", { src: row.crops[0], alt: row.name, title: row.name })),
      ...models.map((model, k) => mapCell(terms, row, model, k)),
      make("td", { text: row.a }),
      make("td", { text: row.b }),
      make("td", { class: "hl-models-same", text: row.same ? terms.same : terms.differs }),
      make("td", { class: row.unknown ? "hl-models-unknown" : "hl-number", text: row.correlation }),
    ),
  );
  const table = make("table", {}, make("thead", {}, heads(columns, [6])), make("tbody", {}, ...body));
  const scroll = { class: "hl-models-scroll", tabindex: 0, role: "region", "aria-label": terms.predictions };
  return section(
    terms.predictions,
    ...[terms.maps_about, ...notes].map((text) => make("p", { class: "hl-quiet", text })),
    make("div", scroll, table),
  );
}

/** Draw the similarity of each stage of A with each of B. */
export function drawSimilarity(terms, { similarity, similarity_notes, layers }) {
  const notes = similarity_notes.map((text) => make("p", { class: "hl-quiet", text }));
  if (!similarity) return section(terms.similarity, ...notes);
  const body = similarity.map((row, k) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", text: layers[0][k] }),
      ...row.map(({ text, estimate, share }) => {
        const title = estimate && fill(terms.estimate, { value: estimate }),
          cell = make("td", { class: "hl-number", text, title });
        cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
        return cell;
      }),
    ),
  );
  const head = make("thead", {}, heads(["", ...layers[1]]));
  const scroll = { class: "hl-models-scroll", tabindex: 0, role: "region", "aria-label": terms.similarity };
  return section(
    terms.similarity,
    make("p", { class: "hl-quiet", text: terms.similarity_about }),
    ...notes,
    make("div", scroll, make("table", { class: "hl-models-matrix" }, head, make("tbody", {}, ...body))),
  );
}

/** Draw the relative differences of the layers, or why there are none. */
export function drawDifferences(terms, { divergence, differences, first }) {
  const says = make("p", { class: "hl-models-first", text: divergence });
  if (!differences.length) return section(terms.differences, says);
  const body = differences.map(([name, value]) =>
    make(
      "tr",
      { "data-first": String(name === first) },
      make("th", { scope: "row", text: name }),
      make("td", { class: "hl-number", text: value }),
    ),
  );
  const head = make("thead", {}, heads([terms.layer, terms.difference], [1]));
  const scroll = { class: "hl-models-scroll hl-models-layers", tabindex: 0, role: "region" };
  const table = make("table", {}, head, make("tbody", {}, ...body));
  return section(terms.differences, says, make("div", { ...scroll, "aria-label": terms.differences }, table));
}
