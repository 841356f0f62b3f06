// The partial maps of a long method: a slider through them after its end, back to the final map.
import { field } from "../drawing/field.js";
import { make } from "../wire.js";

export class History {
  /** `show(step)` draws a partial map, or with null the final one; `sketch(step)` does so ahead of time, unseen. */
  constructor(show, sketch) {
    Object.assign(this, { show, sketch, steps: [], final: null, live: false, ahead: 0 });
    this.slider = make("input", { type: "range", min: 0, max: 0, value: 0, name: "progress", "aria-label": "Progress", oninput: () => this.move(), onpointerenter: () => this.before(), onfocus: () => this.before() });
    this.label = make("output", { class: "hl-step" });
    this.root = make("label", { class: "hl-progress-row", hidden: true, title: "The maps on the way to the final one" },
      make("span", { text: "Progress" }), this.slider, this.label);
  }

  /** While a method runs: the slider stands at its end, and is free once the method has ended. */
  run(partials, value) {
    Object.assign(this, { steps: partials, final: value, live: true });
    this.rest();
  }

  /** The final map of a run, or of a quick method, which has no partial ones. */
  end(partials, value) {
    Object.assign(this, { steps: partials.map((each) => ({ ...each, field: null })), final: value, live: false });
    this.rest();
  }

  clear() {
    this.end([], null);
  }

  /** Stand at the last map. */
  rest() {
    clearTimeout(this.ahead);
    const count = this.steps.length;
    this.root.hidden = !count;
    this.slider.disabled = this.live;
    this.slider.max = this.live ? 1 : count;
    this.slider.value = this.slider.max;
    this.name(this.live ? this.steps.at(-1) : null);
  }

  /** Whether a partial map is shown. */
  get partial() {
    return !this.live && Number(this.slider.value) < this.steps.length;
  }

  /** Back to the final map. */
  back() {
    if (!this.partial) return;
    this.slider.value = this.slider.max;
    this.move();
  }

  /** The partial map that the slider stands at; null at the final one. */
  get step() {
    return this.partial ? this.steps[Number(this.slider.value)] : null;
  }

  /** Draw all steps, one after the other, before they are asked for. */
  before(k = 0) {
    clearTimeout(this.ahead);
    const step = this.live ? null : this.steps[k];
    if (!step) return;
    this.sketch(this.open(step));
    this.ahead = setTimeout(() => this.before(k + 1));
  }

  open(step) {
    step.field = step.field || field(step.map);
    return step;
  }

  move() {
    const { step } = this;
    if (step) this.open(step);
    this.name(step);
    this.show(step);
  }

  name(step) {
    const share = step ? step.share : (this.final?.share ?? 1);
    const seconds = step ? step.seconds : this.final?.seconds;
    const time = Number.isFinite(seconds) ? ` · ${seconds.toFixed(1)} s` : "";
    this.label.textContent = `${Math.round(100 * share)}%${time}`;
    this.slider.setAttribute("aria-valuetext", `${Math.round(100 * share)} per cent${step ? "" : ", the final map"}${time}`);
  }
}
