// Two panels against each other: the rank correlation of every two, and the difference of the two that are chosen.
import { aligned, difference, spearman } from "./maths.js";
import { Plate } from "./plate.js";
import { make, short } from "../wire.js";

const count = (cells) => cells.toLocaleString("en");

export class Pair {
  constructor(board) {
    Object.assign(this, { board, terms: board.terms, two: [], known: new Map(), later: 0, stamp: "" });
    this.plate = new Plate((x, y) => board.point(x, y), this.terms.outside);
    this.plate.clear(this.terms.waiting);
    this.list = make("div", { class: "hl-compare-pairs", role: "radiogroup", "aria-label": this.terms.pairs });
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.title = make("h2", { class: "hl-heading", text: this.terms.difference });
    this.swap = make("button", { type: "button", class: "hl-button", text: this.terms.swap,
      onclick: () => { this.two.reverse(); this.show(); } });
    this.facts = make("dl", { class: "hl-facts" });
    this.element = make("section", { class: "hl-compare-pair", "aria-label": this.terms.difference, hidden: true },
      make("div", { class: "hl-compare-plate" }, ...this.plate.parts),
      make("div", { class: "hl-compare-facts" }, make("header", {}, this.title, this.swap), this.facts,
        make("h2", { class: "hl-title", text: this.terms.correlation }), this.list));
  }

  /** Other panels, other maps, or another way to draw them. */
  refresh(style) {
    const { panels } = this.board;
    this.style = style;
    this.mark();
    this.element.hidden = panels.length < 2;
    if (this.two.length < 2 || !this.two.every((panel) => panels.includes(panel))) this.two = panels.slice(0, 2);
    this.show();
  }

  /** Whether it is of maps that are shown no more, or soon. */
  mark() {
    this.element.dataset.old = String(this.two.some((panel) => panel.element.dataset.old === "true"));
  }

  /** Whether both have their whole map. */
  ready(pair) {
    return pair.every((panel) => panel.plate.map && !panel.partial);
  }

  /** The map as it is drawn: magnitudes where signs are off. */
  drawn(panel) {
    const { map } = panel.plate;
    if (!map || !this.board.magnitudes(map)) return map;
    return { ...map, values: Float32Array.from(map.values, Math.abs) };
  }

  show() {
    this.buttons();
    const [first, second] = this.two;
    if (!first || !second) return;
    const [a, b] = [first, second].map((panel) => panel.letter.textContent);
    this.title.textContent = `${this.terms.difference} ${a} − ${b}`;
    this.swap.textContent = `${this.terms.swap}: ${b} − ${a}`;
    const stamp = JSON.stringify([this.ready(this.two), this.key_of(first, second), this.style, a, b]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    if (!this.ready(this.two)) return this.nothing(this.terms.waiting);
    const maps = [first, second].map((panel) => this.drawn(panel)), grid = aligned(...maps);
    if (!grid) return this.nothing(this.terms.apart);
    this.lay(first, second, maps, grid, `${a} − ${b}`);
  }

  /** The letters of the two, the first less the second, for a file's name. */
  get name() {
    return this.two.map((panel) => panel.letter.textContent).join("-");
  }

  nothing(text) {
    this.plate.clear(text);
    this.facts.replaceChildren();
  }

  lay(first, second, maps, grid, name) {
    const units = [first, second].map((panel) => panel.plate.unit), scaled = units[0] !== units[1];
    const values = difference(grid, scaled), finite = values.filter(Number.isFinite);
    const [lo, hi] = finite.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [0, 0]);
    const map = { values, h: grid.h, w: grid.w, lo, hi, signed: true, box: grid.box };
    const same = grid.box.every((edge, k) => Math.abs(edge - first.plate.box[k]) < 1e-6);
    this.plate.lay(map, same ? first.plate.surface.image : null, scaled ? "" : units[0], `${this.terms.difference} ${name}`, null);
    const fine = [first, second].some((panel) => panel.plate.look?.fine);
    this.plate.draw({ ...this.style, fine, colours: "signed", limits: null, signed: true });
    this.plate.mix(this.board.tools.opacity);
    const from = maps.map(({ h, w }) => `${h} × ${w}`), onto = `${grid.h} × ${grid.w}`;
    const grown = from.filter((size) => size !== onto);
    const facts = [
      ["Grid", grown.length ? `${onto}; ${[...new Set(grown)].join(" and ")} interpolated` : onto],
      ["Unit", scaled ? `none: the units differ (${units.map((unit) => unit || "none").join("; ")}), so each map is divided by its own largest magnitude` : units[0] || "none"],
      ["Range", `${short(lo)} to ${short(hi)}`],
    ];
    if (maps.some((map, k) => map !== [first, second][k].plate.map)) facts.push(["Signs", "magnitudes of maps that have both signs"]);
    if (!same) facts.push(["Place", "the part of the photograph that both networks see"]);
    this.facts.replaceChildren(...facts.flatMap(([term, text]) => [make("dt", { text: term }), make("dd", { text })]));
  }

  /** The buttons of all pairs; their correlations come one after another, so that nothing waits for them. */
  buttons() {
    const { panels } = this.board, pairs = [];
    for (let i = 0; i < panels.length; i++) for (let k = i + 1; k < panels.length; k++) pairs.push([panels[i], panels[k]]);
    const focused = this.list.contains(document.activeElement);
    this.list.replaceChildren(...pairs.map((pair) => {
      const chosen = pair.every((panel) => this.two.includes(panel)), known = this.ready(pair) && this.known.get(this.key_of(...pair));
      return make("button", { type: "button", role: "radio", "aria-checked": String(chosen), tabindex: chosen ? 0 : -1,
        onclick: () => { this.two = pair; this.show(); this.list.querySelector("[aria-checked=true]").focus(); } },
      make("b", { "aria-label": pair.map((panel) => panel.letter.textContent).join(" and "), text: pair.map((panel) => panel.letter.textContent).join(" – ") }),
      make("span", { text: known ? this.stated(known) : this.ready(pair) ? "" : this.terms.no_map }));
    }));
    if (focused) this.list.querySelector("[aria-checked=true]")?.focus({ preventScroll: true });
    const open = pairs.find((pair) => this.ready(pair) && !this.known.has(this.key_of(...pair)));
    clearTimeout(this.later);
    if (open) this.later = setTimeout(() => this.correlate(open), 30);
  }

  correlate(pair) {
    const key = this.key_of(...pair), grid = this.ready(pair) && aligned(...pair.map((panel) => this.drawn(panel)));
    if (this.known.size > 100) this.known.clear();
    if (grid !== false) this.known.set(key, grid ? spearman(grid) : { apart: true });
    this.buttons();
  }

  /** The correlations of all pairs of these panels, for a file. */
  correlations(panels) {
    return panels.flatMap((first, k) => panels.slice(k + 1).map((second) => {
      const grid = aligned(this.drawn(first), this.drawn(second));
      return { panels: [first, second].map((panel) => panel.letter.textContent), grid: grid && [grid.h, grid.w],
        spearman: grid ? spearman(grid) : null };
    }));
  }

  /** In words: "ρ = 0.83 over 49 cells". */
  stated({ apart, rho, cells, constant }) {
    if (apart) return this.terms.apart;
    if (rho === null) return constant === 2 ? this.terms.constants : constant ? this.terms.constant : this.terms.few;
    return `ρ = ${rho < 0 ? "−" : ""}${Math.abs(rho).toFixed(2)} over ${count(cells)} cells`;
  }

  /** The identity of two maps as they are drawn. */
  key_of(first, second) {
    return JSON.stringify([first, second].map(({ plate: { map } }) => map && [map.id, this.board.magnitudes(map)]));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key], items = [...this.list.children];
    if (!step || !items.length) return;
    event.preventDefault();
    items[(items.indexOf(document.activeElement) + step + items.length) % items.length].click();
  }
}
