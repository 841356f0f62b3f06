// The table of the sizes and costs of all layers. It is measured when it is opened, once for each network.
import { state } from "../store.js";
import { makeRow, makeTable } from "../shared/elements.js";
import { make } from "../wire.js";

const NUMBERS = 3; // the first column with numbers

export class DescriptionTable {
  /**
   * @param {Record<string, any>} terms
   * @param {import("../rail/rail.js").Actions} actions
   * @param {(model: string) => void} request
   */
  constructor(terms, actions, request) {
    this.terms = terms;
    this.actions = actions;
    this.request = request;
    this.rows = [];
    this.csv = "";
    this.asked = "";
    this.drawn = null;
    this.says = make("p", { class: "hl-quiet hl-description-totals", role: "status" });
    const kind = (k) => (k < NUMBERS ? "" : "hl-number");
    const titles = terms.columns.map(([text, title], k) => ({ text, title, class: kind(k) })),
      table = makeTable(titles, []);
    this.body = table.tBodies[0];
    const region = { tabindex: 0, role: "region", "aria-label": terms.table };
    this.scroll = make("div", { class: "hl-description-scroll", ...region }, table);
    this.root = make("div", { class: "hl-description", hidden: true }, this.says, this.scroll);
  }

  /** Show or hide the table of a network. */
  open(on, network, chosen) {
    this.root.hidden = !on;
    const isKnown = Boolean(network) && state.description?.model === network.model;
    if (!isKnown) this.clear();
    if (!on || !network) return;
    if (isKnown) return this.receive(network, chosen);
    this.says.textContent = this.terms.describing;
    if (this.asked === network.model) return;
    this.asked = network.model;
    this.request(network.model);
  }

  clear() {
    Object.assign(this, { rows: [], csv: "", drawn: null });
    this.body.replaceChildren();
    this.scroll.hidden = true;
  }

  /** Show the description that has arrived, unless it is that of another network. */
  receive(network, chosen) {
    const { description } = state;
    if (!network || description?.model !== network.model || description === this.drawn) return;
    this.clear();
    this.drawn = description;
    this.asked = "";
    this.says.textContent = description.failed || description.totals;
    if (description.failed) return;
    this.csv = description.csv;
    this.scroll.hidden = false;
    this.rows = description.rows.map((row) => this.createRow(row, network));
    this.body.replaceChildren(...this.rows.map(({ root }) => root));
    this.mark(chosen);
  }

  createRow([name, ...cells], network) {
    const isLeaf = cells.pop(),
      layer = network.names[name] ?? null,
      isSelectable = layer !== null && network.layers[layer].selectable;
    const label = isSelectable
      ? make("button", { class: "hl-link", text: name, onclick: () => this.actions.choose(layer) })
      : make("span", { text: name });
    const head = make("th", { scope: "row", title: isLeaf ? undefined : this.terms.container }, label);
    const rest = cells.map((text, k) => make("td", { class: k + 1 < NUMBERS ? "" : "hl-number", text }));
    return { layer, root: makeRow(head, rest, { "data-leaf": String(isLeaf) }) };
  }

  /** Mark the selected layer. */
  mark(chosen) {
    for (const { layer, root } of this.rows)
      root.setAttribute("aria-current", String(chosen !== null && layer === chosen));
  }
}
