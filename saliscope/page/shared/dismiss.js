// A button that opens a panel, what closes it, and on which side it opens.
import { make } from "../wire.js";

let panels = 0;

/** The arrow of a button that opens something. */
export const makeCaret = () => make("i", { class: "hl-caret", "aria-hidden": "true" });

export class Disclosure {
  /**
   * @param {HTMLButtonElement} button
   * @param {HTMLElement} panel
   * @param {string} kind class of the element with both
   */
  constructor(button, panel, kind) {
    this.button = button;
    this.panel = panel;
    panel.id ||= `hl-panel-${++panels}`;
    panel.hidden = true;
    button.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-controls", panel.id);
    button.addEventListener("click", () => this.open(panel.hidden));
    this.root = make("div", { class: kind }, button, panel);
    // The panel closes when the user leaves it: by Escape, by moving the focus elsewhere, or by a press outside.
    const { root } = this;
    root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.panel.hidden) return;
      event.preventDefault();
      this.open(false);
      this.button.focus();
    });
    root.addEventListener("focusout", (event) => {
      if (event.relatedTarget && !root.contains(event.relatedTarget)) this.open(false);
    });
    document.addEventListener("pointerdown", (event) => {
      if (!root.contains(event.target)) this.open(false);
    });
  }

  open(on) {
    if (on !== this.panel.hidden) return;
    this.panel.hidden = !on;
    this.button.setAttribute("aria-expanded", String(on));
    if (on) this.opened();
    else this.closed();
  }

  opened() {}

  closed() {}
}

/**
 * Open a panel below its button, or above it if it only fits there, within the width of the window.
 * @param {HTMLElement} panel visible; its style follows `data-up` and `data-end`
 */
export function placePanel(panel) {
  panel.removeAttribute("data-up");
  panel.removeAttribute("data-end");
  const { bottom, right, height } = panel.getBoundingClientRect(),
    button = panel.parentElement.getBoundingClientRect();
  panel.toggleAttribute("data-up", bottom > window.innerHeight && button.top > height);
  panel.toggleAttribute("data-end", right > document.documentElement.clientWidth);
  panel.scrollIntoView({ block: "nearest" }); // on a phone, it may fit on neither side
}
