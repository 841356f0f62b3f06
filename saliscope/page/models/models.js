// The comparison of the model of the page with a second one: predictions, maps and layers.
import { drawDifferences, drawImages, drawSimilarity } from "./results.js";
import { toItem } from "../lists/choice.js";
import { Combobox } from "../lists/combobox.js";
import { bindParameters } from "../shared/address.js";
import { state, subscribe } from "../store.js";
import { explain } from "../text/terms.js";
import { Component, mountClass } from "../parts.js";
import { StatusLine } from "../shared/status_line.js";
import { makeTick } from "../shared/elements.js";
import { make, makeButton } from "../wire.js";

class Board extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    const { terms } = this;
    this.other = "";
    this.pending = 0;
    this.shown = null;
    this.isWanted = false;
    this.number = Date.now(); // larger than the numbers of an earlier board: the server ignores smaller ones
    this.list = new Combobox(
      props.combobox.list,
      terms.other,
      () => this.items,
      (value) => this.choose(value),
      { heads: props.combobox.heads },
    );
    const examples = { name: "examples", checked: true, onchange: () => this.mark() };
    this.examples = makeTick(terms.examples, examples);
    this.button = makeButton(terms.compare, () => this.request());
    this.stop = makeButton(terms.stop, () => trigger("stop", {}), { hidden: true });
    this.status = new StatusLine(terms.computing, { text: terms.start });
    this.old = make("p", { class: "hl-quiet", hidden: true, text: terms.old });
    this.results = make("div", { class: "hl-models-results" });
    explain(this.results);
    this.build();
    subscribe(["models"], () => this.showName());
    subscribe(["question", "imagePath"], () => this.mark());
    this.bound = bindParameters(
      ["other"],
      () => ({ other: this.other }),
      ({ other = "" }) => this.restore(other),
    );
    new IntersectionObserver(() => this.whenVisible()).observe(element);
    subscribe(["question"], () => this.whenVisible());
    this.showName();
  }

  build() {
    const { terms } = this;
    this.root.append(
      make("p", { class: "hl-quiet", text: terms.about }),
      make("div", { class: "hl-models-tools" }, this.list.element, this.examples.root, this.button, this.stop),
      make("div", { class: "hl-models-status" }, this.status.line, this.status.bar),
      this.old,
      this.results,
    );
  }

  get items() {
    return (state.models || []).map(toItem);
  }

  /** Get the list of models, and compare the models of a link. */
  whenVisible() {
    if (!state.question || !this.element.checkVisibility()) return;
    if (!state.models && !this.isListed) {
      this.isListed = true;
      this.trigger("listed", {});
    }
    if (this.isWanted) this.request();
  }

  choose(value) {
    this.other = value;
    this.showName();
    this.bound?.();
    this.mark();
  }

  restore(other) {
    if (other === this.other) return;
    this.isWanted = Boolean(other);
    this.choose(other);
    this.whenVisible();
  }

  showName() {
    const item = this.items.find(({ value }) => value === this.other);
    this.list.set(item ? item.label : this.other, this.other);
    this.list.refresh();
  }

  /** What the result depends on. */
  get key() {
    const { names, unused } = state.question || { names: {} };
    const used = [names.model, names.method, unused?.layer ? "" : names.layer, state.imagePath];
    return JSON.stringify([this.other, this.examples.input.checked, ...used]);
  }

  request() {
    this.isWanted = false;
    this.pending = ++this.number;
    this.asked = this.key;
    this.status.say("busy", this.terms.computing);
    this.mark();
    this.trigger("submit", { number: this.pending, other: this.other, examples: this.examples.input.checked });
  }

  receive(value) {
    if (!value || value.number !== this.pending) return false;
    const isLast = value.state === "done" || value.state === "refused";
    if (isLast) this.pending = 0;
    this.status.say({ done: "done", refused: "error" }[value.state] || "busy", value.text, value.fraction);
    if (value.state === "done") {
      this.shown = this.asked;
      const parts = [drawImages, drawSimilarity, drawDifferences];
      this.results.replaceChildren(...parts.map((draw) => draw(this.terms, value)));
    }
    this.mark();
    return isLast;
  }

  /** Mark a result that is not that of the current settings. */
  mark() {
    const isOld = this.shown !== null && (Boolean(this.pending) || this.shown !== this.key);
    this.results.dataset.old = String(isOld || this.status.kind === "error");
    this.old.hidden = !isOld || Boolean(this.pending);
    this.stop.hidden = !this.pending;
  }
}

export const mount = mountClass(Board);
