// Two text fields: the sentence to explain, and a second one for comparison. Together they are one target,
// "a photo of a dog | a photo of a cat", as in saliscope/zoo/text.py.
import { makeLabel } from "../shared/elements.js";
import { make } from "../wire.js";

const BAR = " | ",
  MAX_LENGTH = 240; // characters of a field; the target may have 500

export class SentenceForm {
  /**
   * @param {{group: string, title: string, example: string, against: string, optional: string}} terms
   * @param {(target: string) => void} submit called after Enter, or when the user leaves a changed field
   */
  constructor(terms, submit) {
    this.submit = submit;
    this.fields = [
      [terms.title, terms.example],
      [terms.against, terms.optional],
    ].map(([label, placeholder]) =>
      make("input", {
        type: "text",
        autocomplete: "off",
        maxlength: MAX_LENGTH,
        placeholder,
        "aria-label": label,
        onchange: () => this.changed(),
      }),
    );
    this.shown = this.fields.map(() => "");
    this.element = make(
      "div",
      { class: "hl-sentences", role: "group", "aria-label": terms.group, hidden: true },
      ...this.fields.map((field) => makeLabel(field.ariaLabel, field)),
    );
  }

  get target() {
    const [own, against] = this.fields.map((field) => field.value.trim());
    return against ? `${own}${BAR}${against}` : own;
  }

  changed() {
    this.shown = this.fields.map((field) => field.value);
    this.submit(this.target);
  }

  /** Show a target; a field that the user is changing keeps its text. */
  set(target) {
    if (target === this.target) return;
    const [own, ...rest] = target.split(BAR);
    [own, rest.join(BAR)].forEach((text, k) => {
      const field = this.fields[k],
        isChanging = field === document.activeElement && field.value !== this.shown[k];
      if (isChanging) return;
      field.value = text;
      this.shown[k] = text;
    });
  }
}
