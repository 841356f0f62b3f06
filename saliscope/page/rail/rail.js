// The network diagram: blocks from input to output with their Grad-CAM, gradient norms and skip connections. Selects
// the layer, and previews the maps of other layers.
import { BlockMaps } from "./block_maps.js";
import { InnerLayers } from "./inner_layers.js";
import { blockOf, describeLayer, readNetwork, sizeOf } from "./network.js";
import { followNorms } from "./norms.js";
import { Player } from "./player.js";
import { Track } from "./track.js";
import { DescriptionTable } from "../description/table.js";
import { diagramSvg } from "../description/svg.js";
import { loadImage } from "../drawing/surface.js";
import { isOutdated } from "../shared/outdated.js";
import { explain } from "../text/terms.js";
import { Segments } from "../navigation/segments.js";
import { change, follow, state, subscribe, update } from "../store.js";
import { Component, mountClass } from "../parts.js";
import { downloadFile, fill, make, makeButton } from "../wire.js";

/**
 * What the parts of the diagram can do; layers are positions in the network.
 * @typedef {object} Actions
 * @property {(layer: number, pause?: number) => void} choose selects a layer, after a pause in milliseconds
 * @property {(layer?: number) => void} describe shows a layer's description; without one, that of the selected layer
 * @property {(layer: ?number) => void} point describes a layer and previews its map; null ends the preview
 * @property {() => void} play starts playing the maps from input to output, or stops it
 */

class Rail extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    const { terms } = this;
    this.drawn = "";
    this.network = null;
    this.maps = null;
    this.owner = null;
    this.later = 0;
    this.id = element.id;
    const actions = {
      choose: (k, pause) => this.choose(k, pause),
      describe: (k) => this.describe(k),
      point: (k) => this.point(k),
      play: () => this.player.toggle(),
    };
    this.track = new Track(terms, actions);
    this.inner = new InnerLayers(terms, actions);
    this.table = new DescriptionTable(terms, actions, (model) => trigger("describe", { model }));
    const playing = {
      layers: () => this.track.layersWithMaps(),
      show: (layer, from, share) => this.play(layer, from, share),
      end: () => this.point(null),
    };
    this.player = new Player(playing, this.root);
    this.build();
    follow("network", () => this.drawNetwork());
    subscribe(["rail"], () => this.update());
    subscribe(["asked"], () => {
      this.player.stop();
      this.preview(null);
    });
    subscribe(["description"], () => {
      this.table.receive(this.network, this.chosen);
      this.followSave();
    });
    followNorms(element, (key) => trigger("measure", { key }));
    this.describe();
  }

  build() {
    const { terms, root } = this;
    this.text = make("p", { class: "hl-rail-read" });
    this.about = make("p", { class: "hl-quiet" });
    this.button = makeButton(terms.play, () => this.player.toggle(), { "aria-pressed": "false", disabled: true });
    const title = make("h2", { class: "hl-title", text: terms.title });
    const views = ["diagram", "table"].map((name) => [name, terms[name]]);
    this.view = new Segments(terms.view, views, () => this.showView());
    this.save = makeButton(terms.save_svg, () => this.saveView(), { disabled: true });
    const tools = [this.inner.button, this.button, this.view.root, this.save];
    const head = make("div", { class: "hl-rail-head" }, title, this.about, ...tools);
    const legend = make("p", { class: "hl-quiet", text: terms.legend });
    this.inner.root.prepend(legend);
    explain(legend);
    this.diagram = make("div", { class: "hl-rail-diagram" }, this.text, this.track.root, this.inner.root);
    root.append(head, this.diagram, this.table.root);
  }

  /** Show the diagram, or the table, which is measured when it is opened. */
  showView() {
    const isTable = this.view.value === "table",
      { terms } = this;
    this.player.stop();
    this.diagram.hidden = isTable;
    for (const part of [this.about, this.button]) part.hidden = isTable;
    this.inner.button.classList.toggle("hl-rail-away", isTable);
    this.save.textContent = isTable ? terms.save_csv : terms.save_svg;
    this.table.open(isTable, this.network, this.chosen);
    this.followSave();
  }

  followSave() {
    this.save.disabled = !this.network || (this.view.value === "table" && !this.table.csv);
  }

  /** Download the view that is shown. */
  saveView() {
    const name = this.network.model.replace(/[^\w.-]+/g, "-");
    if (this.view.value === "table")
      downloadFile(new Blob([this.table.csv], { type: "text/csv" }), `${name}-layers.csv`);
    else downloadFile(diagramSvg(this.track.track), `${name}.svg`);
  }

  /** The position of the selected layer, or null. */
  get chosen() {
    return this.network?.names[state.rail.chosen] ?? null;
  }

  drawNetwork() {
    const text = JSON.stringify(state.network);
    if (text === this.drawn) return;
    Object.assign(this, { drawn: text, network: readNetwork(state.network) });
    this.player.stop();
    this.track.draw(this.network);
    this.inner.draw(this.network);
    this.showView();
    this.update();
    this.showMaps();
  }

  /** Update the norms and the selection. */
  update() {
    const { network, chosen } = this;
    if (network) {
      this.track.updateNorms();
      this.track.mark(chosen);
      if (chosen !== null) this.inner.show(blockOf(network, chosen), chosen);
      this.table.mark(chosen);
    }
    this.describe();
  }

  choose(k, pause = 0) {
    const { name, selectable } = this.network.layers[k];
    clearTimeout(this.later);
    if (!selectable || name === state.rail.chosen) return;
    const ask = () => this.trigger("change", { layer: name });
    if (pause) this.later = setTimeout(ask, pause);
    else ask(); // before anything is drawn, which takes longer than sending the request
    change("rail", { chosen: name });
  }

  describe(k = null) {
    const { network, terms } = this,
      shown = k ?? this.chosen;
    const text = !network ? terms.loading : shown === null ? "" : describeLayer(terms, network, shown);
    this.text.textContent = k === null ? [text, state.rail.note].filter(Boolean).join(" · ") : text;
    this.text.title = this.text.textContent;
  }

  /** Describe a layer and preview its map, which is drawn once for the pointer and the focus; null ends this. */
  point(k) {
    this.player.stop();
    this.describe(k);
    if (k === null || state.preview?.layer !== this.network.layers[k].name) this.preview(k);
  }

  /** Show a step of the playback. */
  play(layer, from, share) {
    this.describe(layer);
    this.track.revealLayer(layer);
    this.preview(layer, from, share);
    this.button.setAttribute("aria-pressed", "true");
    this.button.textContent = this.terms.stop;
  }

  /** Show a layer's map on the large image, for a share below 1 fading from another one; null ends this. */
  preview(layer, from = null, share = 1) {
    const { maps, network, terms } = this,
      step = layer !== null && !isOutdated(this.id) && maps?.has(layer) ? maps.step(layer) : null;
    this.track.highlight(step ? layer : null);
    if (!this.player.playing) {
      this.button.setAttribute("aria-pressed", "false");
      this.button.textContent = terms.play;
    }
    if (!step) {
      if (state.preview) update({ preview: null });
      return;
    }
    const { h, w, hi } = step.field,
      { name: shown, height, width } = network.layers[layer];
    const parts = [fill(terms.preview, { layer: shown, name: maps.name }), sizeOf(terms, network.layers[layer])];
    if (h !== height || w !== width) parts.push(fill(terms.averaged, { h, w }));
    if (!hi) parts.push(terms.zero);
    const before = from === null ? null : maps.step(from);
    update({ preview: { layer: shown, text: parts.join(", "), unit: maps.unit, step, before, share } });
  }

  setMaps(maps) {
    this.player.stop();
    this.preview(null);
    this.maps = maps;
    this.track.showMaps(maps);
    this.about.textContent = maps?.packed.size ? fill(this.terms.maps, { name: maps.name }) : "";
    this.button.disabled = !maps?.packed.size;
  }

  /** Show the maps of the answer, unless they belong to the previous network. */
  async showMaps() {
    const { value } = this.props;
    if (!this.network) return;
    if (!value?.stages || (this.owner && this.owner !== this.network.model)) return this.setMaps(null);
    const image = value.crop ? await loadImage(value.crop.src) : null;
    if (value === this.props.value) this.setMaps(new BlockMaps(this.network, value, image));
  }

  /** Handle the maps of a new answer. */
  async receive(value) {
    this.owner = state.network?.model || null;
    if (value?.chosen) change("rail", { chosen: value.chosen });
    this.update();
    await this.showMaps();
    return value === this.props.value;
  }
}

export const mount = mountClass(Rail);
