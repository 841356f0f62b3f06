// The blocks of the network as bars of their gradient norms, with skip connections above and stages below.
import { blockOf, currentNorms, describeLayer, keyTarget } from "./network.js";
import { arcs, columns, createSvg, heights } from "./shapes.js";
import { clearStageMaps, createStage, drawStageMaps, hideLongTexts } from "./stages.js";
import { state } from "../store.js";
import { make } from "../wire.js";

const BAR_HEIGHT = 44; // pixels of the bars, above the line
// pixels of the arcs above the bars: none, around one block, around several
const ARC_HEIGHTS = { none: 4, short: 14, long: 30 };
const MAX_BLOCK_WIDTH = 120; // pixels of a block in a small network
const KEY_DELAY = 180; // milliseconds between an arrow key press and the request, so that a key can be held

export class Track {
  /**
   * @param {Object<string, string>} terms
   * @param {import("./rail.js").Actions} actions
   */
  constructor(terms, actions) {
    Object.assign(this, { terms, actions, network: null, blocks: [], stages: [], at: -1, arcHeight: 0 });
    this.svg = createSvg();
    this.row = make("div", { class: "hl-rail-row", role: "radiogroup", "aria-label": terms.group });
    const track = make("div", { class: "hl-rail-track" }, this.svg, this.row);
    this.root = make("div", { class: "hl-rail-scroll" }, track);
    this.row.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => {
      this.measure();
      if (this.at >= 0) this.reveal(this.blocks[this.at]);
    }).observe(this.root);
  }

  draw(network) {
    Object.assign(this, { network, at: -1 });
    this.blocks = network.blocks.map(({ out }) => this.createBlock(out));
    this.stages = network.stages.map((stage) => createStage(network, stage, this.actions.choose));
    let column = 1;
    network.stages.forEach(([first, last], k) => {
      const start = column;
      for (let block = first; block <= last; block++, column++) this.blocks[block].style.gridColumn = column;
      this.stages[k].style.gridColumn = `${start} / ${column}`;
      column++; // the gap
    });
    const longest = Math.max(0, ...network.arcs.map(([start, end]) => end - start));
    this.arcHeight = longest > 1 ? ARC_HEIGHTS.long : longest ? ARC_HEIGHTS.short : ARC_HEIGHTS.none;
    this.row.style.paddingTop = `${this.arcHeight}px`;
    this.row.style.maxWidth = `${MAX_BLOCK_WIDTH * this.blocks.length + 100}px`;
    this.row.replaceChildren(...this.blocks, ...this.stages);
  }

  createBlock(out) {
    const { choose, describe } = this.actions,
      { name, reason, selectable } = this.network.layers[out];
    const button = make(
      "button",
      {
        type: "button",
        role: "radio",
        "data-layer": name,
        "data-why": reason,
        "aria-disabled": selectable ? null : "true",
        tabindex: -1,
        onclick: () => {
          button.focus({ preventScroll: true });
          choose(out);
        },
        onpointerenter: () => describe(out),
        onpointerleave: () => describe(),
        onfocus: () => describe(out),
        onblur: () => describe(),
      },
      make("i", {}),
    );
    return button;
  }

  /** Update the bars; nothing else moves. */
  updateBars() {
    const { network, terms } = this,
      norms = currentNorms(network),
      outs = network.blocks.map(({ out }) => out);
    const high = norms ? heights(outs.map((k) => norms.norms[k])) : [];
    this.blocks.forEach((button, k) => {
      const bar = button.firstElementChild,
        part = high[k];
      // keep the old heights until the new ones arrive
      if (norms || !state.rail.wanted || !bar.style.height) bar.style.height = `${100 * (part ?? 0.12)}%`;
      button.dataset.norm = part === 0 ? "none" : part ? "known" : "unknown";
      button.setAttribute("aria-label", describeLayer(terms, network, outs[k]));
    });
  }

  /** Mark the block of the selected layer, or none for null. */
  mark(layer) {
    const focused = this.row.contains(document.activeElement);
    this.at = layer === null ? -1 : blockOf(this.network, layer);
    this.blocks.forEach((button, k) => {
      const isOut = k === this.at && this.network.blocks[k].out === layer;
      button.setAttribute("aria-checked", String(isOut));
      button.classList.toggle("hl-rail-within", k === this.at && !isOut);
      button.tabIndex = k === Math.max(0, this.at) ? 0 : -1;
    });
    if (this.at >= 0 && !focused) this.reveal(this.blocks[this.at]);
  }

  reveal({ offsetLeft, offsetWidth }) {
    const { root } = this,
      left = offsetLeft - 24,
      right = offsetLeft + offsetWidth + 24;
    if (left < root.scrollLeft) root.scrollLeft = left;
    else if (right > root.scrollLeft + root.clientWidth) root.scrollLeft = right - root.clientWidth;
  }

  /** Fit the blocks and arcs into the width. */
  measure() {
    const { network, row, blocks } = this;
    if (!network || !this.root.clientWidth) return;
    const [tracks, least] = columns(network.stages, this.root.clientWidth - 6);
    row.style.gridTemplateColumns = tracks;
    row.style.minWidth = `${least}px`;
    const spans = blocks.map((button) => [button.offsetLeft, button.offsetLeft + button.offsetWidth]);
    arcs(this.svg, network.arcs, spans, row.offsetWidth, this.arcHeight + BAR_HEIGHT, BAR_HEIGHT);
    hideLongTexts(this.stages);
  }

  /** Show the maps of the stages; null removes them. */
  showMaps(value) {
    clearStageMaps(this.stages);
    if (value) drawStageMaps(this.stages, this.network, value, this.actions.choose);
  }

  key(event) {
    const { blocks } = this,
      next = keyTarget(event.key, blocks.indexOf(document.activeElement), blocks.length - 1);
    if (next === undefined) return;
    event.preventDefault();
    blocks[next].focus({ preventScroll: true });
    this.reveal(blocks[next]);
    this.actions.choose(this.network.blocks[next].out, KEY_DELAY);
  }
}
