// The display mode: overlay, only the image, only the map, or image and overlay with a draggable divider.
import { fill, make } from "../wire.js";

const MODES = ["overlay", "photograph", "map", "swipe"];
const LONG_PRESS = 300; // milliseconds; a longer press shows the mode only temporarily
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
let groups = 0;

export class DisplayMode {
  /** `change` is called if the mode changes. */
  constructor(terms, frame, change) {
    this.terms = terms;
    this.frame = frame;
    this.change = change;
    this.chosen = "overlay";
    this.held = null;
    this.split = 0.5;
    const name = `shown-${++groups}`;
    this.inputs = MODES.map((value) =>
      make("input", {
        type: "radio",
        name,
        value,
        disabled: true,
        checked: value === this.chosen,
        onchange: () => this.choose(value),
      }),
    );
    this.root = make(
      "div",
      { class: "hl-shown", role: "radiogroup", "aria-label": terms.shown },
      ...MODES.map((value, k) => {
        const [text, title] = terms.modes[value];
        return this.press(make("label", { title }, this.inputs[k], make("span", { text })), value);
      }),
    );
    this.divider = make(
      "div",
      {
        class: "hl-split",
        role: "slider",
        tabindex: 0,
        hidden: true,
        "aria-label": terms.divider,
        "aria-orientation": "horizontal",
        "aria-valuemin": 0,
        "aria-valuemax": 100,
      },
      make("span", { text: terms.modes.photograph[0] }),
      make("i"),
      make("span", { text: terms.modes.overlay[0] }),
    );
    frame.append(this.divider);
    this.drag();
    this.place();
  }

  /** One of "overlay", "photograph", "map" and "swipe". */
  get mode() {
    return this.held || this.chosen;
  }

  /** The arguments of `Surface.mix`. */
  get state() {
    return { mode: this.mode, split: this.split };
  }

  enable(on) {
    for (const input of this.inputs) input.disabled = !on;
    this.place();
  }

  choose(value) {
    this.chosen = MODES.includes(value) ? value : "overlay";
    for (const input of this.inputs) input.checked = input.value === this.chosen;
    this.place();
    this.change();
  }

  /** Show `mode` temporarily; null returns to the selected mode. */
  hold(mode) {
    if (this.held === mode || this.inputs[0].disabled) return;
    this.held = mode;
    this.place();
    this.change();
  }

  /** A long press on a label shows the mode temporarily, a short one selects it. */
  press(label, value) {
    let since = 0,
      temporary = false;
    label.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      [since, temporary] = [event.timeStamp, false];
      this.hold(value);
    });
    for (const name of ["pointerup", "pointerleave", "pointercancel"]) {
      label.addEventListener(name, (event) => {
        if (!this.held) return;
        temporary = event.timeStamp - since >= LONG_PRESS;
        this.hold(null);
      });
    }
    label.addEventListener("click", (event) => {
      if (temporary && event.detail) event.preventDefault();
    });
    label.addEventListener("contextmenu", (event) => {
      if (this.held) event.preventDefault();
    });
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
    divider.addEventListener("pointermove", (event) => {
      if (divider.hasPointerCapture(event.pointerId)) at(event);
    });
    divider.addEventListener("keydown", (event) => {
      const step = KEYS[event.key],
        ends = { Home: 0, End: 1 }[event.key];
      if (step === undefined && ends === undefined) return;
      event.preventDefault();
      this.move(ends ?? this.split + (step * (event.shiftKey ? 10 : 1)) / 100);
    });
  }

  /** Move the divider to this fraction of the width. */
  move(split) {
    this.split = Math.min(1, Math.max(0, split));
    this.place();
    this.change();
  }

  place() {
    const { divider } = this,
      part = Math.round(100 * this.split);
    divider.hidden = this.mode !== "swipe" || this.inputs[0].disabled;
    divider.style.left = `${100 * this.split}%`;
    divider.setAttribute("aria-valuenow", part);
    divider.setAttribute("aria-valuetext", fill(this.terms.divided, { percent: part }));
  }
}
