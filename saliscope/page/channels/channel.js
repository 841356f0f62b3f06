// Navigation of the open channel: Previous and Next in tile order, or a channel number.
import { labelUnit } from "./names.js";
import { countChannels, isOutdated, neighbor, open } from "./state.js";
import { change, state, subscribe } from "../store.js";
import { Component, mountClass } from "../parts.js";
import { make, makeButton, makeSymbolButton } from "../wire.js";

function go(step) {
  const next = neighbor(step);
  if (next !== null) open(next);
}

class Pager extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    const { terms } = this;
    this.shown = null;
    const off = { disabled: true };
    this.previous = makeButton(terms.previous, () => go(-1), off);
    this.next = makeButton(terms.next, () => go(1), off);
    this.close = makeSymbolButton("×", () => open(null), { ...off, "aria-label": terms.close, title: terms.close });
    const attributes = { type: "number", min: 0, step: 1, name: "channel", "aria-label": terms.channel };
    this.number = make("input", { ...attributes, ...off, onchange: () => this.enter() });
    this.count = make("span");
    this.line = make("p", { class: "hl-quiet", role: "status", text: terms.closed });
    this.name = make("p", { class: "hl-channels-name", hidden: true });
    const label = make("label", {}, this.number, this.count);
    this.root.replaceChildren(
      make("div", { class: "hl-pager hl-channels-pager" }, this.previous, label, this.next, this.close),
      this.line,
      this.name,
    );
    subscribe(["channels", "question", "drawn"], () => this.mark());
  }

  /** The column of the open channel. */
  get pane() {
    return this.element.closest("#hl-channels-pane");
  }

  /** Handle a number that was entered. */
  enter() {
    const wanted = Math.round(this.number.valueAsNumber),
      total = countChannels();
    if (Number.isFinite(wanted) && total) open(Math.min(total - 1, Math.max(0, wanted)));
    else this.number.value = String(state.channels.number ?? "");
  }

  /** Mark what is below as outdated until the answer for the current request and channel is drawn. */
  mark() {
    const { sheet, number } = state.channels,
      { shown } = this,
      total = countChannels();
    for (const each of [this.previous, this.next, this.number]) each.disabled = !total;
    this.close.disabled = number === null;
    if (document.activeElement !== this.number) this.number.value = String(number ?? "");
    this.number.max = String(Math.max(0, total - 1));
    this.count.textContent = total ? `${this.terms.of} ${total.toLocaleString("en")}` : "";
    const { name, test } = labelUnit(sheet, number);
    this.name.hidden = number === null || !sheet?.units;
    this.name.replaceChildren(...(name ? [make("b", { text: name }), `, ${test}`] : []));
    const current = shown?.number === number && shown?.about === sheet?.about && shown?.whom === sheet?.whom;
    const isDrawn = (id) => current && state.drawn[id] >= shown.id;
    const pane = this.pane.dataset;
    pane.old = String(number !== null && (isOutdated() || !isDrawn("hl-channel")));
    document.getElementById("hl-channel-why").dataset.old = String(!isDrawn("hl-channel-why")); // arrives later
    pane.channel = number ?? "";
    pane.open = String(number !== null && Boolean(shown));
    this.line.hidden = number !== null || !state.channels.closed; // the first channel opens by itself
  }

  receive(value) {
    if (value && value !== this.shown) {
      this.shown = value.number === null ? null : value;
      this.line.textContent = value.sentence || this.terms.closed;
      // A sentence says why a channel was closed; no other one replaces it.
      if (value.number === null) change("channels", { number: null, closed: Boolean(value.sentence) });
    }
    this.mark();
  }
}

export const mount = mountClass(Pager);
