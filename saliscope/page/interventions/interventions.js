// Changes of the selected channels: the form, its message, and the result. The result is marked as old as soon as the
// settings of the page, the selection or the form differ from those that it answers.
import { ChangeForm } from "./form.js";
import { Result } from "./result.js";
import { select } from "../channels/selection.js";
import { state, subscribe } from "../store.js";
import { Component, mountClass } from "../parts.js";
import { Job } from "../shared/job.js";
import { make } from "../wire.js";

class Interventions extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.answered = "";
    this.swept = "";
    this.of = "";
    this.form = new ChangeForm(this.terms, props.examples, {
      apply: () => this.apply(null),
      reset: () => this.reset(),
      changed: () => this.mark(),
      fail: (message) => this.fail(message),
    });
    this.result = new Result(this.terms, (cell) => this.apply(cell));
    this.job = new Job(trigger, this.terms);
    const { status, stop } = this.job,
      message = make("div", { class: "hl-line hl-change-line" }, status.line, " ", stop);
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", this.terms.group);
    this.root.replaceChildren(this.form.root, message, status.bar, this.result.root);
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

  fail(message) {
    this.job.wait(false);
    this.job.status.say("error", message);
    this.answered = "";
    this.mark();
  }

  /**
   * Request the answer; with a `cell`, only that position is swapped, unless the map of all positions is that of
   * former settings: then all are computed again.
   */
  apply(cell) {
    const { change } = this.form;
    if (cell && !change.positions) return;
    this.requested = this.stamp;
    this.job.ask("submit", { ...change, cell: this.swept === this.stamp ? cell : null });
    this.mark();
  }

  reset() {
    this.job.number += 1; // an answer that arrives later is ignored
    this.job.wait(false);
    this.job.status.say("", "");
    this.trigger("stop", {});
    this.result.clear();
    this.form.reset();
    this.mark();
  }

  async receive(value) {
    const state = this.job.take(value);
    if (!state) return false;
    if (state === "refused") this.fail(value.text);
    if (state !== "done") return;
    const { effects, maps } = value.result;
    this.job.wait(!maps);
    await this.result.show(value.result);
    if (value.number !== this.job.number) {
      this.result.clear();
      return false;
    }
    this.answered = this.requested;
    if (effects) this.swept = this.requested;
    this.job.status.say("", maps ? "" : this.terms.maps_waiting);
    this.mark();
  }
}

export const mount = mountClass(Interventions);
