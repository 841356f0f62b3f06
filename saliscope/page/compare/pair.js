// Compares two panels: the rank correlation of every pair, and the difference of the selected pair.
import { align, difference, maxMagnitude, spearman } from "./statistics.js";
import { MapView } from "./map_view.js";
import { makeFacts } from "../shared/elements.js";
import { COLUMN, itemOfKey, ROW } from "../shared/keys.js";
import { state } from "../store.js";
import { fill, make, makeButton, formatValue } from "../wire.js";

const ROUNDING = 1e-5; // of the largest value: two float32 computations of the same map differ by up to this much
const count = (cells) => cells.toLocaleString("en");

export class Pair {
  constructor(board) {
    this.board = board;
    this.terms = board.terms;
    this.selected = [];
    this.known = new Map();
    this.later = 0;
    this.stamp = "";
    this.shown = []; // the panels of the drawn difference
    this.buttons = []; // with their pairs
    this.mapView = new MapView((x, y) => board.point(x, y), this.terms);
    this.mapView.clear(this.terms.waiting);
    this.list = make("div", { class: "hl-compare-pairs", role: "radiogroup", "aria-label": this.terms.pairs });
    this.list.addEventListener("keydown", (event) =>
      itemOfKey(event, [...this.list.querySelectorAll("button")], { ...ROW, ...COLUMN }, true)?.click(),
    );
    this.title = make("h2", { class: "hl-heading", text: this.terms.difference });
    this.swap = makeButton(this.terms.swap, () => {
      this.selected.reverse();
      this.show();
      board.bound();
    });
    this.facts = make("dl", { class: "hl-facts" });
    this.element = make(
      "section",
      { class: "hl-compare-pair", "aria-label": this.terms.difference, hidden: true },
      make("div", { class: "hl-compare-plate" }, ...this.mapView.parts),
      make(
        "div",
        { class: "hl-compare-facts" },
        make("header", {}, this.title, this.swap),
        this.facts,
        make("h2", { class: "hl-title", text: this.terms.correlation }),
        this.list,
      ),
    );
  }

  /** Update after a change of panels, maps or drawing settings. */
  refresh(style) {
    const { panels } = this.board;
    this.style = style;
    this.element.hidden = panels.length < 2;
    if (this.selected.length < 2 || !this.selected.every((panel) => panels.includes(panel)))
      this.selected = panels.slice(0, 2);
    this.show();
  }

  /** Mark what belongs to maps of which one is outdated. */
  mark() {
    this.element.dataset.old = String(this.shown.length > 0 && !this.ready(this.selected));
    for (const [button, pair] of this.buttons) {
      const isEmpty = !pair.every(({ mapView }) => mapView.map); // and the button says so
      button.dataset.old = String(!isEmpty && !this.ready(pair));
    }
  }

  /** Check whether both maps are complete, and answer the question of the page. */
  ready(pair) {
    return !state.waiting && pair.every((panel) => panel.mapView.map && !panel.isOld && !panel.partial);
  }

  /** Return the map as it is drawn: magnitudes if signs are off. */
  displayedMap(panel) {
    const { map } = panel.mapView;
    if (!map || !this.board.tools.magnitudes(map)) return map;
    return { ...map, values: Float32Array.from(map.values, Math.abs) };
  }

  show() {
    this.drawButtons();
    this.update();
    this.mark();
  }

  update() {
    const [first, second] = this.selected;
    if (!first || !second) return;
    const [a, b] = [first, second].map((panel) => panel.letter.textContent);
    this.title.textContent = `${this.terms.difference} ${a} − ${b}`;
    this.swap.textContent = `${this.terms.swap}: ${b} − ${a}`;
    const stamp = JSON.stringify([this.ready(this.selected), this.keyOf(first, second), this.style, a, b]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    const isOther = this.selected.some((panel, k) => panel !== this.shown[k] || !panel.mapView.map);
    if (!this.ready(this.selected)) {
      if (!isOther) return; // the former difference stays, dimmed
      this.shown = [];
      return this.showEmpty(this.terms.waiting);
    }
    this.shown = [first, second];
    const maps = [first, second].map((panel) => this.displayedMap(panel)),
      grid = align(...maps);
    if (!grid) return this.showEmpty(this.terms.apart);
    this.drawDifference(first, second, maps, grid, `${a} − ${b}`);
  }

  /** Letters of the pair (first minus second), for a file name. */
  get name() {
    return this.selected.map((panel) => panel.letter.textContent).join("-");
  }

  /** Select a pair by its letters, as `name` returns them; others are ignored. */
  select(name) {
    const letters = /^[A-D]-[A-D]$/.test(name) ? name.split("-") : [],
      pair = letters.map((letter) => this.board.panels.find((panel) => panel.letter.textContent === letter));
    if (!pair.length || !pair.every(Boolean) || pair[0] === pair[1]) return;
    this.selected = pair;
    this.show();
  }

  showEmpty(text) {
    this.mapView.clear(text);
    this.facts.replaceChildren();
  }

  drawDifference(first, second, maps, grid, name) {
    const { terms } = this,
      units = [first, second].map((panel) => panel.mapView.unit),
      scaled = units[0] !== units[1];
    const values = difference(grid, scaled),
      finite = values.filter(Number.isFinite);
    const [lo, hi] = finite.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [0, 0]);
    const largest = Math.max(...maps.map(({ values: each }) => maxMagnitude(each)));
    if (finite.length && Math.max(-lo, hi) <= ROUNDING * (scaled ? 1 : largest))
      return this.showEmpty(fill(terms.equal, { difference: formatValue(Math.max(-lo, hi)) }));
    const map = { values, h: grid.h, w: grid.w, lo, hi, signed: true, box: grid.box };
    const same = grid.box.every((edge, k) => Math.abs(edge - first.mapView.box[k]) < 1e-6);
    const words = { unit: scaled ? "" : units[0], alt: `${terms.difference} ${name}` };
    this.mapView.setMap(map, same ? first.mapView.surface.image : null, { words });
    const fine = [first, second].some((panel) => panel.mapView.rendering?.fine);
    this.mapView.draw({ ...this.style, fine, colors: "signed", limits: null, signed: true });
    this.mapView.mix(this.board.tools.opacity);
    this.showFacts({
      grid: this.describeGrid(maps, grid),
      unit: scaled
        ? fill(terms.scaled, { units: units.map((unit) => unit || terms.none).join("; ") })
        : units[0] || terms.none,
      range: fill(terms.range, { low: formatValue(lo), high: formatValue(hi) }),
      signs: maps.some((map, k) => map !== [first, second][k].mapView.map) ? terms.magnitudes : "",
      region: same ? "" : terms.common_region,
    });
  }

  describeGrid(maps, grid) {
    const onto = `${grid.h} × ${grid.w}`,
      grown = maps.map(({ h, w }) => `${h} × ${w}`).filter((size) => size !== onto);
    const grids = [...new Set(grown)].join(` ${this.terms.and} `);
    return grown.length ? fill(this.terms.interpolated, { grid: onto, grids }) : onto;
  }

  /** Show the facts that have a text. */
  showFacts(texts) {
    const facts = Object.entries(texts).filter(([, text]) => text);
    this.facts.replaceChildren(...makeFacts(facts.map(([name, text]) => [this.terms.facts[name], text])));
  }

  /** Draw the buttons of all pairs; correlations are computed one at a time to keep the page responsive. */
  drawButtons() {
    const { panels } = this.board,
      pairs = [];
    for (let i = 0; i < panels.length; i++)
      for (let k = i + 1; k < panels.length; k++) pairs.push([panels[i], panels[k]]);
    const focused = this.list.contains(document.activeElement);
    this.list.replaceChildren(
      ...pairs.map((pair) => {
        const chosen = pair.every((panel) => this.selected.includes(panel)),
          letters = pair.map((panel) => panel.letter.textContent),
          isEmpty = !pair.every(({ mapView }) => mapView.map),
          known = this.known.get(this.keyOf(...pair)); // that of the former maps stays, dimmed
        return make(
          "button",
          {
            role: "radio",
            "aria-checked": String(chosen),
            tabindex: chosen ? 0 : -1,
            onclick: () => {
              this.selected = pair;
              this.show();
              this.board.bound();
              this.list.querySelector("[aria-checked=true]").focus();
            },
          },
          make("b", { "aria-label": letters.join(` ${this.terms.and} `), text: letters.join(" – ") }),
          make("span", { text: isEmpty ? this.terms.no_map : known ? this.describe(known) : "" }),
        );
      }),
    );
    this.buttons = pairs.map((pair, k) => [this.list.children[k], pair]);
    if (focused) this.list.querySelector("[aria-checked=true]")?.focus({ preventScroll: true });
    const open = pairs.find((pair) => this.ready(pair) && !this.known.has(this.keyOf(...pair)));
    clearTimeout(this.later);
    if (open) this.later = setTimeout(() => this.correlate(open), 30);
  }

  correlate(pair) {
    const key = this.keyOf(...pair),
      isReady = this.ready(pair),
      grid = isReady && align(...pair.map((panel) => this.displayedMap(panel)));
    if (this.known.size > 100) this.known.clear();
    if (isReady) this.known.set(key, grid ? spearman(grid) : { apart: true });
    this.drawButtons();
    this.mark();
  }

  /** Return the correlations of all pairs of these panels, for a file. */
  correlations(panels) {
    return panels.flatMap((first, k) =>
      panels.slice(k + 1).map((second) => {
        const grid = align(this.displayedMap(first), this.displayedMap(second));
        return {
          panels: [first, second].map((panel) => panel.letter.textContent),
          grid: grid && [grid.h, grid.w],
          spearman: grid ? spearman(grid) : null,
        };
      }),
    );
  }

  /** Format a correlation: "ρ = 0.83 over 49 cells". */
  describe({ apart, rho, cells, constant }) {
    if (apart) return this.terms.apart;
    if (rho === null) return constant === 2 ? this.terms.constants : constant ? this.terms.constant : this.terms.few;
    const value = `${rho < 0 ? "−" : ""}${Math.abs(rho).toFixed(2)}`;
    return fill(this.terms.correlated, { rho: value, cells: count(cells) });
  }

  /** Return a key for two maps as they are drawn. */
  keyOf(first, second) {
    return JSON.stringify(
      [first, second].map(({ mapView: { map } }) => map && [map.id, this.board.tools.magnitudes(map)]),
    );
  }
}
