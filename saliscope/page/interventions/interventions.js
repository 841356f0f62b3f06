// Changes of the selected channels: the form, its message, and the result. The result is marked as old as soon as the
// settings of the page, the selection or the form differ from those that it answers.
import { ChangeForm } from "./form.js";
import { Result } from "./result.js";
import { select } from "../channels/selection.js";
import { state, subscribe } from "../store.js";
import { Component, mountClass } from "../parts.js";
import { make, makeButton } from "../wire.js";

class Interventions extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.ticket = 0;
    this.answered = "";
    this.swept = "";
    this.of = "";
    this.form = new ChangeForm(this.terms, props.examples, {
      apply: () => this.apply(null),
      reset: () => this.reset(),
      changed: () => this.mark(),
      fail: (message) => this.say(message, "error"),
    });
    this.result = new Result(this.terms, (cell) => this.apply(cell));
    this.line = make("span");
    this.stop = makeButton(this.terms.stop, () => trigger("stop", {}), { hidden: true });
    this.bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": this.terms.waiting });
    this.message = make("p", { class: "hl-line hl-change-line", role: "status" }, this.line, " ", this.stop);
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", this.terms.group);
    this.root.replaceChildren(this.form.root, this.message, this.bar, this.result.root);
    subscribe(["channels", "question"], () => this.follow());
    this.follow();
  }

  /** Everything that the result depends on, as text. */
  get stamp() {
    return JSON.stringify([state.question?.id, this.form.change]);
  }

  follow() {
    const { sheet, selecting, selected } = state.channels,
      of = sheet ? `${state.question?.names.model} ${sheet.layer}` : this.of;
    this.root.hidden = !selecting;
    if (of !== this.of) {
      this.of = of; // channels of another layer
      if (selected.length) return select([]);
    }
    this.form.mark();
    this.mark();
  }

  mark() {
    this.result.mark(this.stamp !== this.answered);
  }

  say(text, kind = "", { fraction = null, running = false } = {}) {
    this.line.textContent = text;
    this.message.dataset.kind = kind;
    this.stop.hidden = !running;
    this.bar.hidden = fraction === null;
    if (fraction !== null) this.bar.value = fraction;
    if (kind === "error") this.answered = "";
    this.mark();
  }

  /**
   * Request the answer; with a `cell`, only that position is swapped, unless the map of all positions is that of
   * former settings: then all are computed again.
   */
  apply(cell) {
    const { change } = this.form;
    if (cell && !change.positions) return;
    this.ticket += 1;
    this.requested = this.stamp;
    this.say(this.terms.waiting, "", { running: true });
    this.trigger("submit", { ...change, cell: this.swept === this.stamp ? cell : null, ticket: this.ticket });
  }

  reset() {
    this.ticket += 1; // an answer that arrives later is ignored
    this.trigger("stop", {});
    this.result.clear();
    this.form.reset();
    this.say("");
  }

  async receive(value) {
    if (!value || value.ticket !== this.ticket) return false;
    if (value.refused) this.say(value.refused, "error");
    else if (value.waiting) this.say(value.waiting, "", { fraction: value.fraction, running: true });
    else if (value.result) {
      await this.result.show(value.result);
      if (value.ticket !== this.ticket) {
        this.result.clear();
        return false;
      }
      this.answered = this.requested;
      if (value.result.effects) this.swept = this.requested;
      this.say("");
      if (!value.result.maps) this.say(this.terms.maps_waiting, "", { running: true });
    }
  }
}

export const mount = mountClass(Interventions);
