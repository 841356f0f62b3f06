// A button that opens a small panel of controls.
import { Disclosure, makeCaret } from "../shared/dismiss.js";
import { make } from "../wire.js";

export class Popover extends Disclosure {
  /** @param {string} label of the button and the panel */
  constructor(label, ...content) {
    const panel = make("div", { class: "hl-popover-panel", role: "group", "aria-label": label }, ...content);
    super(make("button", { class: "hl-button" }, label, makeCaret()), panel, "hl-popover");
  }

  opened() {
    this.panel.scrollIntoView({ block: "nearest" });
  }
}
