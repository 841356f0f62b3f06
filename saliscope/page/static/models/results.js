// The tables of the comparison of two models.
import { make } from "../wire.js";

const section = (title, ...parts) =>
  make("section", { "aria-label": title }, make("h2", { class: "hl-title", text: title }), ...parts);

/** Create the head of a table; `numbers` are the columns with numbers. */
function heads(texts, numbers = []) {
  const cell = (text, k) => make("th", { scope: "col", text, class: numbers.includes(k) ? "hl-number" : "" });
  return make("tr", {}, ...texts.map(cell));
}

/** Format a correlation with a true minus sign. */
const number = (terms, value) => (value === null ? terms.undefined : value.toFixed(2).replace("-", "−"));

/** Draw the predictions of both models for each image. */
export function drawImages(terms, { rows, notes, models }) {
  const columns = terms.columns.map((text, k) => (k === 1 || k === 2 ? `${text}: ${models[k - 1]}` : text));
  const body = rows.map(({ name, src, a, b, same, correlation }) =>
    make(
      "tr",
      { "data-same": String(same) },
      make("th", { scope: "row" }, make("img", { src, alt: name, title: name })),
      make("td", { text: a }),
      make("td", { text: b }),
      make("td", { class: "hl-models-same", text: same ? terms.same : terms.differs }),
      make("td", { class: "hl-number", text: number(terms, correlation) }),
    ),
  );
  const table = make("table", {}, make("thead", {}, heads(columns, [4])), make("tbody", {}, ...body));
  const scroll = { class: "hl-models-scroll", tabindex: 0, role: "region", "aria-label": terms.predictions };
  return section(
    terms.predictions,
    ...notes.map((text) => make("p", { class: "hl-quiet", text })),
    make("div", scroll, table),
  );
}

/** Draw the similarity of each stage of A with each of B. */
export function drawSimilarity(terms, { similarity, layers, few }) {
  if (!similarity) return section(terms.similarity, make("p", { class: "hl-quiet", text: few }));
  const body = similarity.map((row, k) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", text: layers[0][k] }),
      ...row.map((value) => {
        const cell = make("td", { class: "hl-number", text: number(terms, value) });
        cell.style.setProperty("--share", `${Math.round(100 * Math.min(1, Math.max(0, value ?? 0)))}%`);
        return cell;
      }),
    ),
  );
  const head = make("thead", {}, heads(["", ...layers[1]]));
  const scroll = { class: "hl-models-scroll", tabindex: 0, role: "region", "aria-label": terms.similarity };
  return section(
    terms.similarity,
    make("p", { class: "hl-quiet", text: terms.similarity_about }),
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
