// The table of the predictions before and after an edit.
import { make } from "../wire.js";

export class Predictions {
  constructor(terms) {
    this.terms = terms;
    this.body = make("tbody");
    const heads = terms.columns.map((text, k) => make("th", { scope: "col", class: k ? "hl-number" : "", text }));
    heads.at(-1).title = terms.points;
    this.table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), this.body);
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
    this.body.replaceChildren(
      ...rows.map((row) => {
        const name = make("th", { scope: "row" }, make("span", { text: row.name }));
        if (row.target) name.append(" ", make("small", { class: "hl-quiet", text: this.terms.explained }));
        const cell = (text) => make("td", { class: "hl-number", text: text ?? "" });
        const cells = [row.before, row.after, row.change].map(cell);
        if (row.change) cells[2].dataset.rises = String(row.rises);
        return make("tr", { "data-target": String(row.target) }, name, ...cells);
      }),
    );
  }
}
