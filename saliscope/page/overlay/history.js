// The partial maps of a slow method: a slider through them after the run, up to the final map.
import { unpackMap } from "../drawing/field.js";
import { makeLabel } from "../shared/elements.js";
import { fill, make } from "../wire.js";

export class History {
  /** `show(step)` draws a partial map, or the final one for null; `sketch(step)` draws it ahead of time, off screen. */
  constructor(terms, show, sketch) {
    this.terms = terms;
    this.show = show;
    this.sketch = sketch;
    this.steps = [];
    this.final = null;
    this.live = false;
    this.timer = 0;
    this.slider = make("input", {
      type: "range",
      min: 0,
      max: 0,
      value: 0,
      name: "progress",
      "aria-label": terms.progress,
      oninput: () => this.move(),
      onpointerenter: () => this.sketchAll(),
      onfocus: () => this.sketchAll(),
    });
    this.label = make("output", { class: "hl-step" });
    const row = { class: "hl-progress-row", hidden: true, title: terms.progress_title };
    this.root = makeLabel(terms.progress, this.slider, row);
    this.root.append(this.label);
  }

  /**
   * Set the partial maps of a run, and its newest or final map. During a run, the slider stays at its end; it is
   * enabled once the run has finished.
   */
  set(partials, value, live = false) {
    const steps = partials.map((each) => ({ ...each, field: null }));
    Object.assign(this, { steps, final: value, live });
    clearTimeout(this.timer);
    const count = this.steps.length;
    this.root.hidden = !count;
    this.slider.disabled = this.live;
    this.slider.max = String(this.live ? 1 : count);
    this.slider.value = this.slider.max;
    this.updateLabel(this.live ? this.steps.at(-1) : null);
  }

  /** Whether a partial map is shown. */
  get partial() {
    return !this.live && Number(this.slider.value) < this.steps.length;
  }

  /** Go back to the final map. */
  back() {
    if (!this.partial) return;
    this.slider.value = this.slider.max;
    this.move();
  }

  /** The selected partial map; null for the final map. */
  get step() {
    return this.partial ? this.steps[Number(this.slider.value)] : null;
  }

  /** Draw all steps ahead of time, one after the other. */
  sketchAll(k = 0) {
    clearTimeout(this.timer);
    const step = this.live ? null : this.steps[k];
    if (!step) return;
    this.sketch(this.open(step));
    this.timer = setTimeout(() => this.sketchAll(k + 1));
  }

  open(step) {
    step.field = step.field || unpackMap(step.map);
    return step;
  }

  move() {
    const { step } = this;
    if (step) this.open(step);
    this.updateLabel(step);
    this.show(step);
  }

  updateLabel(step) {
    const share = step ? step.share : (this.final?.share ?? 1);
    const seconds = step ? step.seconds : this.final?.seconds;
    const time = Number.isFinite(seconds) ? ` · ${seconds.toFixed(1)} s` : "";
    const percent = Math.round(100 * share);
    this.label.textContent = `${percent}%${time}`;
    const text = fill(this.terms.percent, { percent }) + (step ? "" : this.terms.final_map);
    this.slider.setAttribute("aria-valuetext", text + time);
  }
}
