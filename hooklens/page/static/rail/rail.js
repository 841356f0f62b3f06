// The network from input to output: blocks with gradient norms, skip connections, stages with Grad-CAM. Selects the
// layer.
import { InnerLayers } from "./inner_layers.js";
import { blockOf, describeLayer, readNetwork } from "./network.js";
import { followNorms } from "./norms.js";
import { Track } from "./track.js";
import { change, state, subscribe } from "../store.js";
import { watchProps, make, markDrawn } from "../wire.js";

/**
 * What the components of the rail can do; layers are positions in the network.
 * @typedef {object} Actions
 * @property {(layer: number, pause?: number) => void} choose selects a layer, after a pause in milliseconds
 * @property {(layer?: number) => void} describe shows a layer's description; without one, that of the selected layer
 */

class Rail {
  constructor(element, props, trigger) {
    const { terms } = props;
    Object.assign(this, { element, props, trigger, terms, network: null, owner: null, later: 0 });
    const actions = { choose: (k, pause) => this.choose(k, pause), describe: (k) => this.describe(k) };
    this.track = new Track(terms, actions);
    this.inner = new InnerLayers(terms, actions);
    this.text = make("p", { class: "hl-rail-read" });
    const title = make("h2", { class: "hl-title", text: terms.title }),
      legend = make("p", { class: "hl-quiet", text: terms.legend });
    const head = make("div", { class: "hl-rail-head" }, title, legend);
    element.firstElementChild.append(head, this.track.root, this.text, this.inner.root);
    subscribe(["network"], () => this.drawNetwork());
    subscribe(["rail"], () => this.update());
    followNorms(element.closest("[id^='hl-']"), (key) => trigger("measure", { key }));
    if (state.network) this.drawNetwork();
    this.describe();
  }

  /** The position of the selected layer, or null. */
  get chosen() {
    return this.network?.names[state.rail.chosen] ?? null;
  }

  drawNetwork() {
    const text = JSON.stringify(state.network);
    if (text === this.drawn) return;
    Object.assign(this, { drawn: text, network: readNetwork(state.network) });
    this.track.draw(this.network);
    this.inner.draw(this.network);
    this.update();
    this.track.measure();
    this.showMaps();
  }

  /** Update the bars and the selection. */
  update() {
    const { network, chosen } = this;
    if (network) {
      this.track.updateBars();
      this.track.mark(chosen);
      if (chosen !== null) this.inner.show(blockOf(network, chosen), chosen);
    }
    this.describe();
  }

  choose(k, pause = 0) {
    const { name, selectable } = this.network.layers[k];
    clearTimeout(this.later);
    if (!selectable || name === state.rail.chosen) return;
    change("rail", { chosen: name });
    this.later = setTimeout(() => this.trigger("select", { layer: name }), pause);
  }

  describe(k = null) {
    const { network, terms } = this,
      shown = k ?? this.chosen;
    const text = !network ? terms.loading : shown === null ? "" : describeLayer(terms, network, shown);
    this.text.textContent = k === null ? [text, state.rail.note].filter(Boolean).join(" ") : text;
  }

  /** Show the maps of the answer, unless they belong to the previous network. */
  showMaps() {
    if (!this.network) return;
    const { value } = this.props,
      current = !this.owner || this.owner === this.network.model;
    this.track.showMaps(current ? value : null);
  }

  /** Handle the maps of a new answer. */
  receive() {
    const since = performance.now(),
      value = this.props.value || {};
    this.owner = state.network?.model || null;
    this.showMaps();
    if (value.chosen) change("rail", { chosen: value.chosen });
    this.update();
    markDrawn(this.element, value.id, since);
  }
}

export function mount(element, props, trigger, watch) {
  const rail = new Rail(element, props, trigger);
  watchProps(props, watch, ["value"], () => rail.receive());
}
