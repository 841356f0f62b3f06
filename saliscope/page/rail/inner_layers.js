// The layers inside the block of the selected layer, expanded on demand.
import { lengths } from "./geometry.js";
import { currentNorms, sizeOf } from "./network.js";
import { COLUMN, ENDS, itemOfKey, ROW } from "../shared/keys.js";
import { fill, make } from "../wire.js";

const KEY_DELAY = 180; // milliseconds between an arrow key press and the request, so that a key can be held

/** Return the layers' names without their common beginning. */
function shortNames(names, block) {
  const parts = names.map((name) => name.split("."));
  let common = 0;
  while (parts.length > 1 && parts.every((each) => each.length > common + 1 && each[common] === parts[0][common]))
    common++;
  return names.map((name, k) => {
    if (name === block) return name;
    return name.startsWith(`${block}.`) ? name.slice(block.length + 1) : parts[k].slice(common).join(".");
  });
}

export class InnerLayers {
  /**
   * @param {Object<string, string>} terms
   * @param {import("./rail.js").Actions} actions
   */
  constructor(terms, actions) {
    this.terms = terms;
    this.actions = actions;
    this.network = null;
    this.shown = -1;
    this.buttons = [];
    this.last = null;
    this.button = make("button", {
      class: "hl-link hl-rail-open",
      "aria-expanded": "false",
      hidden: true,
      onclick: () => this.toggle(),
    });
    this.list = make("div", { class: "hl-rail-inside", role: "radiogroup" });
    this.root = make("div", { class: "hl-rail-more", hidden: true }, this.list);
    this.list.addEventListener("keydown", (event) => this.key(event));
  }

  /** Open or close the list. */
  toggle() {
    this.root.hidden = !this.root.hidden;
    this.button.setAttribute("aria-expanded", String(!this.root.hidden));
    this.shown = -1;
    if (this.last) this.show(...this.last);
  }

  /** Set another network. */
  draw(network) {
    Object.assign(this, { network, shown: -1, last: null });
  }

  /** Show the layers of a block, and select one of them. */
  show(block, layer) {
    this.last = [block, layer];
    const focused = this.list.contains(document.activeElement);
    if (block !== this.shown) this.fill(block);
    const { first, count } = this.network.blocks[block],
      norms = currentNorms(this.network);
    const high = norms ? lengths(norms.norms.slice(first, first + count)) : [];
    this.buttons.forEach((button, k) => {
      const chosen = first + k === layer;
      button.setAttribute("aria-checked", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      button.querySelector("i").style.height = `${100 * (high[k] ?? 0.12)}%`;
      button.dataset.norm = high[k] === 0 ? "none" : high[k] ? "known" : "unknown";
      button.setAttribute("aria-label", this.label(first + k, norms));
    });
    if (!this.buttons.some((button) => button.tabIndex === 0) && this.buttons.length) this.buttons[0].tabIndex = 0;
    if (focused) this.list.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  }

  label(k, norms) {
    const { terms } = this,
      { name, height, why } = this.network.layers[k],
      norm = norms?.norms[k];
    const parts = [name];
    if (height) parts.push(sizeOf(terms, this.network.layers[k]));
    if (norm !== undefined && norm !== null) parts.push(fill(terms.norm, { norm, name: norms.name }));
    return parts.join(", ") + (why ? `. ${why}` : "");
  }

  fill(at) {
    const { network, terms } = this,
      { first, count, out } = network.blocks[at],
      { name } = network.layers[out];
    this.shown = at;
    this.button.hidden = count < 2 && Boolean(this.root.hidden);
    this.button.textContent = fill(terms.inside, { name, count });
    this.list.setAttribute("aria-label", fill(terms.inside_group, { name }));
    const layers = !this.root.hidden ? network.layers.slice(first, first + count) : [];
    const names = layers.map((layer) => layer.name),
      short = shortNames(names, name);
    this.buttons = layers.map((layer, k) => this.createButton(layer, first + k, short[k]));
    this.list.replaceChildren(...this.buttons);
  }

  createButton({ name, kind, reason, selectable }, k, text) {
    const { choose, describe } = this.actions;
    return make(
      "button",
      {
        role: "radio",
        "data-layer": name,
        "data-why": reason,
        "aria-disabled": selectable ? null : "true",
        onclick: () => choose(k),
        onpointerenter: () => describe(k),
        onpointerleave: () => describe(),
        onfocus: () => describe(k),
        onblur: () => describe(),
      },
      make("span", { class: "hl-rail-step" }, make("i", {})),
      make("code", { text }),
      make("span", { text: kind }),
    );
  }

  key(event) {
    const next = itemOfKey(event, this.buttons, { ...ROW, ...COLUMN, ...ENDS });
    if (!next) return;
    next.focus({ preventScroll: true });
    this.actions.choose(this.network.blocks[this.shown].first + this.buttons.indexOf(next), KEY_DELAY);
  }
}
