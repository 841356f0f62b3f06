// The boxes of the diagram from the image to the class score, with small maps, gradient norms and skip connections.
import { thumbnail } from "./block_maps.js";
import { itemsOf, LEAST_BOXES, runsOf } from "./folding.js";
import { drawArcs, layout, lengths, placeArcs, roomFor } from "./geometry.js";
import { createLabels } from "./labels.js";
import { blockOf, currentNorms, describeLayer } from "./network.js";
import { svg } from "../drawing/graph.js";
import { reveal } from "../shared/elements.js";
import { COLUMN, ENDS, itemOfKey, ROW } from "../shared/keys.js";
import { fill, make } from "../wire.js";

const LEAST_TOP = 6; // pixels above the highest box

export class Track {
  /**
   * @param {Object<string, string>} terms
   * @param {import("./rail.js").Actions} actions
   */
  constructor(terms, actions) {
    this.terms = terms;
    this.actions = actions;
    this.network = null;
    this.maps = null;
    this.runs = [];
    this.items = [];
    this.opened = new Set();
    this.boxes = [];
    this.chosen = null; // a layer
    this.svg = svg("svg", { "aria-hidden": "true" });
    this.row = make("div", { class: "hl-rail-row", role: "toolbar", "aria-label": terms.group });
    this.track = make("div", { class: "hl-rail-track" }, this.svg, this.row);
    this.root = make("div", { class: "hl-rail-scroll" }, this.track);
    this.row.addEventListener("keydown", (event) => this.key(event));
    this.row.addEventListener("pointerleave", () => actions.point(null));
    this.row.addEventListener("focusout", ({ relatedTarget }) => {
      if (!this.row.contains(relatedTarget)) actions.point(null);
    });
    new ResizeObserver(() => this.resize()).observe(this.root);
  }

  /** Draw a network. In a hidden view, nothing is drawn until it is shown. */
  draw(network) {
    Object.assign(this, { network, runs: runsOf(network), opened: new Set(), maps: null, chosen: null, width: 0 });
    Object.assign(this, { items: [], boxes: [] }); // those of the former network
    this.resize();
  }

  /** Draw the boxes for the current width. */
  resize() {
    const width = this.root.clientWidth - 12;
    if (!this.network || width < 1 || width === this.width) return;
    this.width = width;
    this.build();
  }

  build() {
    const { network, runs, opened, row, width } = this,
      points = runs.filter(({ spatial }) => !spatial).length;
    const focused = row.contains(document.activeElement) ? document.activeElement.dataset.layer : null;
    this.items = itemsOf(runs, Math.max(LEAST_BOXES, roomFor(width, points)), opened);
    const { gap, sizes } = layout(network, this.items, width),
      tall = sizes.slice(1, -1).map(({ height }) => height),
      arcs = placeArcs(network.arcs, this.items, tall);
    const top = Math.max(...sizes.map(({ height }) => height), ...arcs.map(({ rise }) => rise)) + LEAST_TOP;
    row.style.gridTemplateColumns = sizes.map((size) => `${size.width}px`).join(` ${gap}px `);
    row.style.gridTemplateRows = `${top}px`;
    row.style.width = `${sizes.reduce((sum, size) => sum + size.width + gap, -gap)}px`;
    row.style.setProperty("--gap", `${gap}px`);
    this.boxes = this.items.map((item, k) => this.createBox(item, sizes[k + 1]));
    this.input = make("div", { class: "hl-rail-image", "aria-hidden": "true" });
    this.score = make("div", { class: "hl-rail-score" });
    const cells = [this.input, ...this.boxes, this.score];
    cells.forEach((cell, k) => Object.assign(cell.style, { gridColumn: 2 * k + 1, gridRow: 1 }));
    const badges = this.items.map((item, k) => this.createBadge(item, k, sizes[k + 1], top)).filter(Boolean);
    const labels = createLabels(this.terms, network, this.items, sizes, gap, this.actions);
    row.replaceChildren(...cells, ...badges, ...labels);
    let left = 0;
    /** @type {[number, number][]} */
    const spans = sizes.map((size) => [left, (left += size.width + gap) - gap]);
    drawArcs(this.svg, arcs, spans, gap, top);
    this.updateNorms();
    this.showMaps(this.maps);
    this.mark(this.chosen);
    if (focused) this.boxes.find((box) => box.dataset.layer === focused)?.focus({ preventScroll: true });
  }

  outOf(item) {
    return this.network.blocks[item.last].out;
  }

  createBox(item, { width, height }) {
    const { choose, point } = this.actions,
      out = this.outOf(item),
      { name, reason, selectable } = this.network.layers[out];
    const box = make(
      "button",
      {
        class: "hl-rail-box",
        "data-layer": name,
        "data-why": reason,
        "data-spatial": String(item.spatial),
        "data-folded": String(item.folded),
        "aria-disabled": selectable ? null : "true",
        tabindex: -1,
        onclick: () => {
          choose(out);
          box.focus({ preventScroll: true });
        },
        onpointerenter: () => point(out),
        onfocus: () => point(out),
      },
      make("span", { class: "hl-rail-map" }),
      make("i", {}),
    );
    Object.assign(box.style, { width: `${width}px`, height: `${height}px` });
    return box;
  }

  /** Create the button that opens a run of folded blocks, or closes it again. */
  createBadge({ first, last, run, folded }, k, { height }, top) {
    const { layers, blocks } = this.network,
      opened = this.opened.has(run),
      isFirst = this.items[k - 1]?.run !== run;
    if (!folded && !(opened && isFirst)) return null;
    const [from, to] = opened ? [this.runs[run].first, this.runs[run].last] : [first, last],
      count = to - from + 1;
    const names = { first: layers[blocks[from].out].name, last: layers[blocks[to].out].name, count };
    const badge = make("button", {
      class: "hl-rail-badge",
      text: fill(opened ? this.terms.close : this.terms.count, { count }),
      "aria-label": fill(opened ? this.terms.close_label : this.terms.open_label, names),
      "aria-expanded": String(opened),
      tabindex: -1,
      onclick: () => this.toggle(run),
    });
    Object.assign(badge.style, { gridColumn: 2 * k + 3, gridRow: 1, marginTop: `${top - height - 9}px` });
    return badge;
  }

  /** Open a run of folded blocks, or close it. */
  toggle(run) {
    if (!this.opened.delete(run)) this.opened.add(run);
    this.build();
    const first = this.boxes[this.items.findIndex((item) => item.run === run)];
    first.focus({ preventScroll: true });
    this.reveal(first);
  }

  /** Update the bars of the gradient norms; nothing moves. */
  updateNorms() {
    const { network, terms, items } = this,
      norms = currentNorms(network),
      outs = items.map((item) => this.outOf(item));
    const long = norms ? lengths(outs.map((k) => norms.norms[k])) : [];
    this.boxes.forEach((box, k) => {
      const part = long[k],
        { first, last, folded } = items[k];
      box.querySelector("i").style.width = `${100 * (part ?? 0)}%`;
      box.dataset.norm = part === 0 ? "none" : part ? "known" : "unknown";
      const text = describeLayer(terms, network, outs[k]);
      box.setAttribute("aria-label", text + (folded ? ` ${fill(terms.folded, { count: last - first + 1 })}` : ""));
    });
  }

  /** Mark the box of the selected layer, or none for null. */
  mark(layer) {
    this.chosen = layer;
    const block = layer === null ? -1 : blockOf(this.network, layer),
      at = this.items.findIndex(({ first, last }) => first <= block && block <= last);
    this.boxes.forEach((box, k) => {
      const isOut = k === at && this.outOf(this.items[k]) === layer;
      box.setAttribute("aria-pressed", String(isOut));
      box.classList.toggle("hl-rail-within", k === at && !isOut);
      box.tabIndex = k === Math.max(0, at) ? 0 : -1;
    });
    if (at >= 0 && !this.row.contains(document.activeElement)) this.reveal(this.boxes[at]);
  }

  /** Mark the box whose map is previewed, or none for null. */
  highlight(layer) {
    this.boxes.forEach((box, k) => box.classList.toggle("hl-rail-shown", this.outOf(this.items[k]) === layer));
  }

  reveal(box) {
    reveal(this.root, box, 24);
  }

  /** Scroll to the box of a layer. */
  revealLayer(layer) {
    const at = this.items.findIndex((item) => this.outOf(item) === layer);
    if (at >= 0) this.reveal(this.boxes[at]);
  }

  /** Show the maps of an answer; null removes them. */
  showMaps(maps) {
    this.maps = maps;
    if (!this.input) return; // not drawn yet, because its view is hidden
    this.boxes.forEach((box, k) => {
      const out = this.outOf(this.items[k]);
      box.querySelector(".hl-rail-map").replaceChildren(...(maps?.has(out) ? [maps.canvas(out)] : []));
    });
    this.input.replaceChildren(...(maps?.image ? [thumbnail(maps.image)] : []));
    const { score = "", name = "" } = maps || {};
    this.score.replaceChildren(make("strong", { text: score }), make("span", { text: name, title: name }));
  }

  /** Return the layers of the boxes that have a map. */
  layersWithMaps() {
    return this.items.map((item) => this.outOf(item)).filter((layer) => this.maps?.has(layer));
  }

  key(event) {
    const { boxes, items } = this,
      at = boxes.indexOf(document.activeElement);
    if (at < 0) return;
    if (event.key === " " || event.key === "Escape") {
      event.preventDefault();
      return event.key === " " ? this.actions.play() : this.actions.point(null);
    }
    const opens = event.key === "ArrowDown" && items[at]?.folded,
      closes = event.key === "ArrowUp" && this.opened.has(items[at]?.run);
    if (opens || closes) {
      event.preventDefault();
      return this.toggle(items[at].run);
    }
    const next = itemOfKey(event, boxes, { ...ROW, ...COLUMN, ...ENDS });
    if (!next) return;
    for (const box of boxes) box.tabIndex = box === next ? 0 : -1;
    next.focus({ preventScroll: true });
    this.reveal(next);
  }
}
