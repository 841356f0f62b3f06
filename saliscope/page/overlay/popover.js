// A button that opens a small panel of controls; Escape, a click outside or leaving it closes it.
import { dismiss } from "../shared/dismiss.js";
import { make } from "../wire.js";

let popovers = 0;

export class Popover {
  /** @param {string} label of the button and the panel */
  constructor(label, ...content) {
    const id = `hl-popover-${++popovers}`;
    this.panel = make("div", { class: "hl-popover-panel", id, role: "group", "aria-label": label, hidden: true });
    this.panel.append(...content);
    this.button = make(
      "button",
      {
        class: "hl-button",
        "aria-expanded": "false",
        "aria-controls": id,
        onclick: () => this.open(this.panel.hidden),
      },
      label,
      make("i", { class: "hl-caret", "aria-hidden": "true" }),
    );
    this.root = make("div", { class: "hl-popover" }, this.button, this.panel);
    dismiss(this.root, this.button, this.panel, () => this.open(false));
  }

  open(on) {
    this.panel.hidden = !on;
    this.button.setAttribute("aria-expanded", String(on));
    if (on) this.panel.scrollIntoView({ block: "nearest" });
  }
}
