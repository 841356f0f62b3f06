// A group of buttons of which one is pressed.
import { make } from "../wire.js";

export class Segments {
  /**
   * @param {string} label
   * @param {string[][]} items value, text and title
   * @param {(value: string) => void} change
   */
  constructor(label, items, change) {
    this.buttons = items.map(([value, text, title]) =>
      make("button", { "data-value": value, text, title, onclick: () => this.choose(value, change) }),
    );
    this.root = make("div", { class: "hl-segments", role: "group", "aria-label": label }, ...this.buttons);
    this.set(items[0][0]);
  }

  choose(value, change) {
    if (value === this.value) return;
    this.set(value);
    change(value);
  }

  set(value) {
    this.value = value;
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }
}
