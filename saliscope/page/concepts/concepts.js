// Concepts of the layer: a tile for each, and the selected one with its strongest cuts and the network with it scaled.
// What belongs to former settings is dim until the page has an answer for its new ones.
import { unpackMap } from "../drawing/field.js";
import { loadImage } from "../drawing/surface.js";
import { Figure } from "../interventions/figure.js";
import { Result } from "../interventions/result.js";
import { paintSmall } from "../maps/small_map.js";
import { bindParameters } from "../shared/address.js";
import { state, subscribe } from "../store.js";
import { Component, mountClass } from "../parts.js";
import { Job } from "../shared/job.js";
import { makeLabel, makeOptions, makeSelect } from "../shared/elements.js";
import { fill, formatValue, make, makeButton } from "../wire.js";

const TILE = 96; // CSS pixels of the longer side of a map

/** The selected concept: its map, the cuts where it is strongest, its strength, and what that changes. */
class Opened {
  constructor(terms, scale) {
    this.terms = terms;
    this.title = make("h2", { class: "hl-title" });
    this.figure = new Figure("", { point: (cell) => this.point(cell) });
    this.read = make("output", { class: "hl-quiet" });
    this.cuts = make("div", { class: "hl-concepts-cuts" });
    this.slider = make("input", { type: "range", min: 0, max: 2, step: 0.25, value: 0, "aria-label": terms.factor });
    this.factorText = make("output");
    this.result = new Result({ ...terms.change }, () => {});
    this.slider.addEventListener("input", () => this.showFactor());
    this.slider.addEventListener("change", scale);
    this.root = make(
      "section",
      { hidden: true, class: "hl-concepts-open" },
      this.title,
      make(
        "div",
        { class: "hl-concepts-where" },
        make("div", {}, this.figure.root, this.read),
        make("div", {}, make("p", { class: "hl-quiet", text: terms.strongest }), this.cuts),
      ),
      make(
        "label",
        { class: "hl-concepts-factor" },
        make("span", { text: terms.factor }),
        this.slider,
        this.factorText,
      ),
      this.result.root,
    );
    this.showFactor();
  }

  get factor() {
    return Number(this.slider.value);
  }

  showFactor() {
    const text = this.terms.factors[this.slider.value] || fill(this.terms.times, { factor: this.slider.value });
    this.factorText.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
  }

  /** Show a concept without what its removal changes. */
  show({ index, map, cuts }, image) {
    const { terms } = this,
      name = fill(terms.map, { index });
    this.title.textContent = fill(terms.name, { index });
    this.figure.caption.textContent = name;
    this.figure.canvas.setAttribute("aria-label", name);
    this.cuts.replaceChildren(
      ...(cuts.length ? cuts.map(({ src, name: alt }) => make("img", { src, alt, title: alt })) : [terms.absent]),
    );
    this.slider.value = "0";
    this.showFactor();
    this.result.clear();
    this.root.hidden = false;
    this.map = unpackMap(map);
    this.figure.show(this.map, image, { colors: "magma" });
    this.point(null);
  }

  point(cell) {
    this.figure.point(cell);
    this.read.textContent = cell ? formatValue(this.map.values[cell[0] * this.map.w + cell[1]]) : "";
  }
}

class Concepts extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    const { terms } = this;
    this.sheet = this.image = null;
    this.open = null;
    this.key = this.resultKey = ""; // of the settings that the concepts and the change answer
    this.isAsked = this.isWanted = false;
    const counts = terms.counts.map((count) => [count, count]);
    this.count = makeSelect({ name: "k" }, counts);
    this.source = make("select", { name: "source" });
    this.sources = makeLabel(terms.source, this.source, { hidden: true });
    this.button = makeButton(terms.find, () => this.find(), { class: "hl-button hl-primary" });
    this.job = new Job(trigger, terms);
    this.tiles = make("div", { class: "hl-concepts-tiles", role: "group", "aria-label": terms.title });
    this.opened = new Opened(terms, () => this.scale());
    this.count.value = terms.default;
    this.build();
    this.follow();
  }

  build() {
    const { terms } = this,
      label = makeLabel(terms.count, this.count);
    this.root.replaceChildren(
      make("p", { class: "hl-quiet", text: terms.about }),
      make("div", { class: "hl-concepts-tools" }, label, this.sources, this.button, this.job.stop),
      make("div", { class: "hl-concepts-status" }, this.job.status.line, this.job.status.bar),
      make("div", { class: "hl-concepts-results" }, this.tiles, this.opened.root),
    );
    for (const select of [this.count, this.source]) select.addEventListener("change", () => this.mark());
  }

  follow() {
    this.bound = bindParameters(
      ["concepts", "concept"],
      () => ({
        concepts: Number(this.count.value) === this.terms.default ? "" : this.count.value,
        concept: this.open === null ? "" : String(this.open),
      }),
      (values, coming) => this.restore(values, coming && Boolean(this.bound)),
    );
    subscribe(["asked"], () => this.settle(true));
    subscribe(["question"], () => this.settle(false));
    subscribe(["phase"], () => state.phase !== "busy" && this.settle(false)); // also after an error
    subscribe(["uploaded"], () => this.listSources());
    subscribe(["view", "drawn"], () => this.whenVisible());
    this.listSources();
  }

  listSources() {
    const { value } = this.source;
    this.source.replaceChildren(
      ...makeOptions(this.terms.sources.map(([name, text]) => [name, fill(text, { count: state.uploaded.length })])),
    );
    this.sources.hidden = !state.uploaded.length;
    this.source.value = this.sources.hidden ? "examples" : value || "examples";
    this.mark();
  }

  /** The request for concepts with the settings of the form. */
  get request() {
    const files = this.source.value === "batch" ? state.uploaded : [];
    return { k: Number(this.count.value), files };
  }

  get currentKey() {
    const { subject, names } = state.question || {};
    return JSON.stringify([this.request, subject, names?.model, names?.layer]);
  }

  get currentResultKey() {
    return JSON.stringify([this.currentKey, state.question?.key, this.open, this.opened.factor]);
  }

  get isOld() {
    return this.isAsked || this.key !== this.currentKey;
  }

  settle(isAsked) {
    this.isAsked = isAsked;
    this.mark();
    this.whenVisible();
  }

  /** Ask for what a link shows, and for the change with another method. */
  whenVisible() {
    if (this.isAsked || !state.question?.subject || !this.element.checkVisibility()) return;
    if (this.isWanted && this.isOld) this.find();
    else if (this.open !== null && !this.job.isPending && this.resultKey !== this.currentResultKey) this.scale();
    this.isWanted = false;
  }

  /** Show what the address says. `isComing`: the page has yet to ask for the settings of the address. */
  restore({ concepts = "", concept = "" }, isComing) {
    const count = this.terms.counts.find((each) => String(each) === concepts) || this.terms.default;
    this.count.value = String(count);
    this.open = /^\d{1,2}$/.test(concept) ? Number(concept) : null;
    this.isWanted = this.open !== null;
    this.isAsked = isComing;
    this.showOpen();
    this.whenVisible();
  }

  find() {
    this.requestedKey = this.currentKey;
    this.job.ask("submit", this.request);
    this.mark();
  }

  scale() {
    if (this.isOld || this.open === null) return;
    this.requestedResult = this.currentResultKey;
    this.job.ask("scale", { ...this.request, concept: this.open, factor: this.opened.factor });
    this.mark();
  }

  async receive(value) {
    const state = this.job.take(value);
    if (state === "refused") this.fail();
    else if (state !== "done") return false;
    else if (value.sheet) await this.showSheet(value.sheet);
    else await this.showResult(value.result);
  }

  fail() {
    if (this.requestedKey !== this.key) this.key = ""; // the old concepts stay, dimmed
    this.resultKey = this.currentResultKey; // not asked again by itself
    this.mark();
  }

  async showSheet(sheet) {
    this.image = await loadImage(sheet.crop.src);
    this.sheet = sheet;
    this.key = this.requestedKey;
    this.tiles.replaceChildren(...sheet.items.map((item) => this.tile(item)));
    this.job.status.say("done", sheet.summary);
    this.showOpen();
    this.whenVisible();
  }

  async showResult(result) {
    await this.opened.result.show(result);
    this.resultKey = this.requestedResult;
    this.job.status.say("done", this.sheet.summary);
    this.mark();
    this.whenVisible();
  }

  tile({ index, effect, map }) {
    const canvas = make("canvas", { width: 1, height: 1, "aria-hidden": "true" });
    paintSmall(canvas, this.image, unpackMap(map), TILE);
    const attributes = { "data-index": index, onclick: () => this.select(index) };
    return make(
      "button",
      { ...attributes, "aria-label": fill(this.terms.tile, { index, effect }) },
      canvas,
      make("span", { text: String(index) }),
      make("strong", { text: effect }),
    );
  }

  select(index) {
    this.open = index;
    this.showOpen();
    this.bound();
    this.whenVisible();
  }

  /** Show the selected concept. */
  showOpen() {
    const item = this.sheet?.items.find(({ index }) => index === this.open);
    if (this.sheet && !item && !this.isWanted) this.open = null;
    this.resultKey = "";
    for (const tile of this.tiles.children)
      tile.setAttribute("aria-pressed", String(Number(tile.dataset.index) === this.open));
    if (item) this.opened.show(item, this.image);
    else this.opened.root.hidden = true;
    this.mark();
  }

  /** Mark what belongs to former settings. */
  mark() {
    const isOld = Boolean(this.sheet) && this.isOld,
      { isPending, status } = this.job;
    this.tiles.dataset.old = this.opened.root.dataset.old = String(isOld);
    this.opened.slider.disabled = isOld;
    this.opened.result.mark(isOld || this.resultKey !== this.currentResultKey);
    if (isOld && !isPending && status.kind === "done") status.say("old", this.terms.old);
    else if (!isOld && status.kind === "old") status.say("done", this.sheet.summary);
  }
}

export const mount = mountClass(Concepts);
