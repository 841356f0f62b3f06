// The form for changes of the whole image.
import { Popover } from "../overlay/popover.js";
import { makeTick } from "../shared/elements.js";
import { fill, make, makeButton } from "../wire.js";

const NEUTRAL = { rotate: 0, right: 0, down: 0, brightness: 100, contrast: 100, noise: 0, jpeg: "" };
const RANGE_OF = { right: "shift", down: "shift" };

/** A field for a whole number with a name and a unit. */
function numberField(text, unit, attributes) {
  const label = [text, unit].filter(Boolean).join(", "),
    input = make("input", { type: "number", step: 1, "aria-label": label, ...attributes });
  const parts = [make("span", { text }), input, make("span", { class: "hl-quiet", text: unit })];
  return { input, root: make("label", {}, ...parts) };
}

export class WholeImage {
  /** @param {(values: Object<string, string>) => void} change gets the fields that differ from the neutral values */
  constructor(terms, ranges, change) {
    this.terms = terms;
    const act = () => change(this.values);
    this.flips = ["flip_x", "flip_y"].map((name) => ({ name, ...makeTick(terms[name], { name, onchange: act }) }));
    this.fields = Object.entries(NEUTRAL).map(([name, neutral]) => {
      const [text, unit] = terms[name],
        [min, max] = ranges[RANGE_OF[name] || name];
      const placeholder = name === "jpeg" ? terms.none : undefined;
      return { name, ...numberField(text, unit, { name, min, max, value: neutral, placeholder, onchange: act }) };
    });
    const reset = makeButton(terms.reset, () => {
      this.set({});
      act();
    });
    this.popover = new Popover(terms.whole, ...[...this.flips, ...this.fields].map(({ root }) => root), reset);
    this.popover.panel.classList.add("hl-erase-whole");
    this.root = this.popover.root;
  }

  get values() {
    const flips = this.flips.filter(({ input }) => input.checked).map(({ name }) => [name, "1"]);
    const numbers = this.fields
      .filter(({ name, input }) => input.value.trim() !== "" && input.value !== String(NEUTRAL[name]))
      .map(({ name, input }) => [name, input.value.trim()]);
    return Object.fromEntries([...flips, ...numbers]);
  }

  set(values) {
    for (const { name, input } of this.flips) input.checked = Boolean(values[name]);
    for (const { name, input } of this.fields) input.value = values[name] ?? NEUTRAL[name];
    const count = Object.keys(values).length;
    this.popover.button.firstChild.textContent = count ? fill(this.terms.whole_changed, { count }) : this.terms.whole;
  }
}
