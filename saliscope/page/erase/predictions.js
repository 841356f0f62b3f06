// The table of the predictions before and after an edit.
import { makeRow, makeTable } from "../shared/elements.js";
import { make } from "../wire.js";

export class Predictions {
  constructor(terms) {
    this.terms = terms;
    const titles = terms.columns.map((text, k) => ({ text, class: k ? "hl-number" : "" }));
    titles.at(-1).title = terms.points;
    this.table = makeTable(titles, []);
    this.root = make(
      "section",
      { class: "hl-erase-predictions", "aria-label": terms.predictions },
      make("h2", { class: "hl-title", text: terms.predictions }),
      this.table,
    );
  }

  /**
   * @param {{name: string, target: boolean, before: string, after: ?string, change: ?string, rises: boolean}[]} rows
   */
  show(rows) {
    this.table.tBodies[0].replaceChildren(
      ...rows.map((row) => {
        const name = make("th", { scope: "row" }, make("span", { text: row.name }));
        if (row.target) name.append(" ", make("small", { class: "hl-quiet", text: this.terms.explained }));
        const cell = (text) => make("td", { class: "hl-number", text: text ?? "" });
        const cells = [row.before, row.after, row.change].map(cell);
        if (row.change) cells[2].dataset.rises = String(row.rises);
        return makeRow(name, cells, { "data-target": String(row.target) });
      }),
    );
  }
}
