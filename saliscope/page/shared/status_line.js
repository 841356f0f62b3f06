// A line of text with a progress bar: what a view is doing, what it has done, or an error.
import { make } from "../wire.js";

/**
 * Return the elements of a text of the server.
 * @param {{text: string, mono?: boolean, strong?: boolean}[]} parts
 */
export const drawText = (parts) =>
  parts.map(({ text, mono, strong }) => make(mono ? "code" : strong ? "strong" : "span", { text }));

export class StatusLine {
  /**
   * @param {string} label of the progress bar
   * @param {Record<string, any>} more attributes of the line
   */
  constructor(label, more = {}) {
    this.line = make("p", { class: "hl-line", role: "status", ...more });
    this.bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": label });
  }

  get kind() {
    return this.line.dataset.kind;
  }

  /**
   * Show a text, and the progress unless it is null. A text that is shown already is not spoken again.
   * @param {string} kind "busy", "done", "error", …
   * @param {string | {text: string, mono?: boolean, strong?: boolean}[]} text
   * @param {?number} fraction
   */
  say(kind, text, fraction = null) {
    const drawn = make("p", {}, ...(typeof text === "string" ? [text] : drawText(text || [])));
    if (drawn.innerHTML !== this.line.innerHTML) this.line.replaceChildren(...drawn.childNodes);
    this.line.dataset.kind = kind;
    this.bar.hidden = fraction === null || fraction === undefined;
    if (!this.bar.hidden) this.bar.value = fraction;
  }
}
