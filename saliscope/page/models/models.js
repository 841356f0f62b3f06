// The comparison of the model of the page with a second one: predictions, maps and layers.
import { drawDifferences, drawImages, drawSimilarity } from "./results.js";
import { toItem } from "../lists/choice.js";
import { Combobox } from "../lists/combobox.js";
import { bindParameters } from "../shared/address.js";
import { state, subscribe } from "../store.js";
import { explain } from "../text/terms.js";
import { Component, listOf, mountClass } from "../parts.js";
import { Job } from "../shared/job.js";
import { makeTick } from "../shared/elements.js";
import { make, makeButton } from "../wire.js";

class Board extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    const { terms } = this;
    this.other = "";
    this.shown = null;
    this.isWanted = false;
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
    this.job = new Job(trigger, terms);
    this.old = make("p", { class: "hl-quiet", hidden: true, text: terms.old });
    this.results = make("div", { class: "hl-models-results" });
    explain(this.results);
    this.build();
    subscribe(["question", "imagePath"], () => this.mark());
    this.bound = bindParameters(
      ["other"],
      () => ({ other: this.other }),
      ({ other = "" }) => this.restore(other),
    );
    new IntersectionObserver(() => this.whenVisible()).observe(element);
    subscribe(["question"], () => {
      this.showName();
      this.whenVisible();
    });
    this.showName();
  }

  build() {
    const { terms } = this;
    this.root.append(
      make("p", { class: "hl-quiet", text: terms.about }),
      make("div", { class: "hl-models-tools" }, this.list.element, this.examples.root, this.button, this.job.stop),
      make("div", { class: "hl-models-status" }, this.job.status.line, this.job.status.bar),
      this.old,
      this.results,
    );
  }

  get items() {
    return listOf("hl-model").map(toItem);
  }

  /** Compare the models of a link. */
  whenVisible() {
    if (this.isWanted && state.question && this.element.checkVisibility()) this.request();
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
    this.asked = this.key;
    this.job.ask("submit", { other: this.other, examples: this.examples.input.checked });
    this.mark();
  }

  receive(value) {
    const state = this.job.take(value);
    if (state === "done") {
      this.job.status.say("done", value.text);
      this.shown = this.asked;
      const parts = [drawImages, drawSimilarity, drawDifferences];
      this.results.replaceChildren(...parts.map((draw) => draw(this.terms, value)));
    }
    this.mark();
    return !["", "waiting"].includes(state);
  }

  /** Mark a result that is not that of the current settings. */
  mark() {
    const { isPending, status } = this.job,
      isOld = this.shown !== null && (isPending || this.shown !== this.key);
    this.results.dataset.old = String(isOld || status.kind === "error");
    status.line.parentElement.dataset.old = String(this.asked !== this.key);
    this.old.hidden = !isOld || isPending;
  }
}

export const mount = mountClass(Board);
