// What is shown: the overlay, the photograph, the map alone, or photograph and overlay beside a divider that one drags.
import { make } from "../wire.js";

const CHOICES = [
  ["overlay", "Overlay", "The map over the muted photograph"],
  ["photograph", "Photograph", "The photograph alone: hold for a look, or click; on the picture, hold P"],
  ["map", "Map", "The map alone"],
  ["swipe", "Swipe", "Photograph and overlay beside a divider to drag"],
];
const HELD = 300;                                        // milliseconds of a press that is a look and no choice
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
let groups = 0;

export class Shown {
  /** `change` is called when another thing is to be shown. */
  constructor(frame, change) {
    Object.assign(this, { frame, change, chosen: "overlay", held: null, split: 0.5 });
    const name = `shown-${++groups}`;
    this.inputs = CHOICES.map(([value]) => make("input", { type: "radio", name, value, disabled: true, checked: value === this.chosen,
      onchange: () => this.choose(value) }));
    this.root = make("div", { class: "hl-shown", role: "radiogroup", "aria-label": "Shown" },
      ...CHOICES.map(([value, text, title], k) => this.press(make("label", { title }, this.inputs[k], make("span", { text })), value)));
    this.divider = make("div", { class: "hl-split", role: "slider", tabindex: 0, hidden: true, "aria-label": "Divider between photograph and overlay",
      "aria-orientation": "horizontal", "aria-valuemin": 0, "aria-valuemax": 100 },
      make("span", { text: "Photograph" }), make("i"), make("span", { text: "Overlay" }));
    frame.append(this.divider);
    this.drag();
    this.place();
  }

  /** One of "overlay", "photograph", "map" and "swipe". */
  get mode() {
    return this.held || this.chosen;
  }

  /** As `Surface.mix` takes it. */
  get state() {
    return { mode: this.mode, split: this.split };
  }

  enable(on) {
    for (const input of this.inputs) input.disabled = !on;
    this.place();
  }

  choose(value) {
    this.chosen = CHOICES.some(([known]) => known === value) ? value : "overlay";
    for (const input of this.inputs) input.checked = input.value === this.chosen;
    this.place();
    this.change();
  }

  /** Show `mode` while something is held, null for what is chosen. */
  hold(mode) {
    if (this.held === mode || this.inputs[0].disabled) return;
    this.held = mode;
    this.place();
    this.change();
  }

  /** A long press on a label is a look at it, a short one chooses it. */
  press(label, value) {
    let since = 0, looked = false;
    label.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      [since, looked] = [event.timeStamp, false];
      this.hold(value);
    });
    for (const name of ["pointerup", "pointerleave", "pointercancel"]) {
      label.addEventListener(name, (event) => {
        if (!this.held) return;
        looked = event.timeStamp - since >= HELD;
        this.hold(null);
      });
    }
    label.addEventListener("click", (event) => { if (looked && event.detail) event.preventDefault(); });
    label.addEventListener("contextmenu", (event) => { if (this.held) event.preventDefault(); });
    return label;
  }

  drag() {
    const { divider } = this;
    const at = (event) => {
      const rect = this.frame.getBoundingClientRect();
      this.move((event.clientX - rect.left) / rect.width);
    };
    divider.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      divider.setPointerCapture(event.pointerId);
      at(event);
    });
    divider.addEventListener("pointermove", (event) => { if (divider.hasPointerCapture(event.pointerId)) at(event); });
    divider.addEventListener("keydown", (event) => {
      const step = KEYS[event.key], ends = { Home: 0, End: 1 }[event.key];
      if (step === undefined && ends === undefined) return;
      event.preventDefault();
      this.move(ends ?? this.split + (step * (event.shiftKey ? 10 : 1)) / 100);
    });
  }

  /** Put the divider at this part of the width. */
  move(split) {
    this.split = Math.min(1, Math.max(0, split));
    this.place();
    this.change();
  }

  place() {
    const { divider } = this, part = Math.round(100 * this.split);
    divider.hidden = this.mode !== "swipe" || this.inputs[0].disabled;
    divider.style.left = `${100 * this.split}%`;
    divider.setAttribute("aria-valuenow", part);
    divider.setAttribute("aria-valuetext", `photograph on the left ${part} per cent`);
  }
}
