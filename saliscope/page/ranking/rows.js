// One row of the ranking: rank, small map, numbers, and the results of the metrics.
import { paintSmall } from "../maps/small_map.js";
import { bytes, fill, make } from "../wire.js";

const SIDE = 40; // CSS pixels of the small map

export const COLUMNS = ["order", "map", "insertion", "deletion", "difference", "margin", "seconds"];
/** Initial sort direction of each column. */
export const FIRST = { order: 1, map: 1, insertion: -1, deletion: 1, difference: -1, margin: -1, seconds: 1 };

const formatScore = (value, digits = 3) =>
  value === null || value === undefined ? "" : value.toFixed(digits).replace("-", "−");
function formatSeconds(value) {
  if (value === null || value === undefined) return "";
  return value < 0.01 ? "< 0.01" : value.toFixed(value < 0.1 ? 2 : 1);
}

export class Row {
  /**
   * @param {Record<string, any>} terms
   * @param {(row: any) => void} chosen called on a click
   */
  constructor(terms, chosen) {
    this.terms = terms;
    this.stamp = "";
    this.place = make("td", { class: "hl-ranking-place" });
    this.canvas = make("canvas", { class: "hl-ranking-small", width: 1, height: 1, "aria-hidden": "true" });
    this.button = make("button", { class: "hl-ranking-name" }); // its clicks are those of the row
    this.plain = make("span", { class: "hl-ranking-name" });
    this.map = make("th", { scope: "row", class: "hl-ranking-map" });
    this.cells = Object.fromEntries(
      COLUMNS.slice(2).map((name) => [name, make("td", { class: `hl-ranking-${name}` })]),
    );
    this.element = make(
      "tr",
      { onclick: () => this.value.control || chosen(this.value) },
      this.place,
      make("td", { class: "hl-ranking-image" }, this.canvas),
      this.map,
      ...Object.values(this.cells),
    );
  }

  /** `full` is the length of the longest curves. */
  show(value, { full, photo, here }) {
    this.value = value;
    const { terms, element, cells } = this,
      about = value.steps < full ? "≈ " : "";
    element.className = value.control ? "hl-ranking-control" : value.best ? "hl-ranking-best" : "";
    element.dataset.id = value.id;
    element.toggleAttribute("data-here", Boolean(here));
    element.title = (value.about || []).join("\n");
    this.place.textContent = value.rank ?? "";
    const name = value.control ? this.plain : this.button;
    name.replaceChildren(
      value.title,
      ...(value.layer ? [make("span", { class: "hl-ranking-layer", text: ` ${value.layer}` })] : []),
    );
    if (!value.control)
      name.setAttribute(
        "aria-label",
        terms.show.replace("{name}", () => (value.layer ? `${value.title}, ${value.layer}` : value.title)),
      );
    this.map.replaceChildren(name, ...this.marks(value), ...this.equal(value));
    for (const each of ["insertion", "deletion", "difference"])
      cells[each].textContent = value[each] === null ? "" : about + formatScore(value[each]);
    cells.margin.textContent = value.beside ? about + value.beside : "";
    cells.seconds.textContent = formatSeconds(value.seconds);
    if (value.map && this.stamp !== value.map.b64 + Boolean(photo)) this.paint(value, photo);
  }

  /** Return what distinguishes a row: the best one, warnings about its method, and controls. */
  marks({ best, cut, control, badges = [] }) {
    const { terms } = this,
      own = [best && terms.best, cut && terms.cut, control && terms.control].filter(Boolean);
    const mark = ([text, title]) => make("span", { class: "hl-ranking-mark", text, title });
    return [...own.map((text) => [text, null]), ...badges].map(mark);
  }

  /** Return the line with the methods that have the same map. */
  equal({ equal = [] }) {
    const names = equal.map(([, , title]) => title).join(", ");
    return equal.length ? [make("span", { class: "hl-ranking-equal", text: fill(this.terms.same, { names }) })] : [];
  }

  paint({ map, by_size: bySize }, photo) {
    this.stamp = map.b64 + Boolean(photo);
    const values = Float32Array.from(new Int8Array(bytes(map.b64).buffer));
    paintSmall(this.canvas, photo, { ...map, values }, SIDE, { signed: !bySize });
  }
}

/**
 * Sort the rows by a column; missing values always come last.
 * @param {Record<string, any>[]} rows
 * @param {string} column
 * @param {number} direction 1 or -1
 * @returns {Record<string, any>[]}
 */
export function sortRows(rows, column, direction) {
  const key = (row) => (column === "map" ? `${row.title} ${row.layer || ""}` : row[column]);
  return [...rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === y) return a.order - b.order;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return direction * (column === "map" ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
  });
}

/**
 * Return the table as CSV in the current order, with the ranks and the numbers of the table.
 * @param {Record<string, any>[]} rows
 * @returns {string}
 */
export function csv(rows) {
  const measured = ["insertion", "deletion", "difference", "compared_with_controls", "seconds", "steps"],
    names = ["rank", "method", "layer", ...measured];
  const cell = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const values = (row) => ({
    ...row,
    method: row.control ? row.title : [row.method, ...row.equal.map(([method]) => method)].join(" = "),
    compared_with_controls: row.beside,
    notes: (row.badges || []).map(([text]) => text).join("; "),
  });
  const columns = [...names, "notes"];
  const line = (row) => columns.map((name) => cell(String(row[name] ?? ""))).join(",");
  return `${[columns.join(","), ...rows.map(values).map(line)].join("\n")}\n`;
}
