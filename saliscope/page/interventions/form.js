// The form of a change: the selected channels, what happens to their values, and Apply and Reset.
import { selectTop } from "../channels/channels.js";
import { formatChannels, parseChannels, select } from "../channels/selection.js";
import { SecondImage } from "../panel/second_image.js";
import { state } from "../store.js";
import { makeForm, makeLabel, makeSelect } from "../shared/elements.js";
import { fill, make, makeButton } from "../wire.js";

const TOP = 10;

export class ChangeForm {
  /**
   * @param {Record<string, any>} terms
   * @param {{id: string, alt: string, src: string, at: string}[]} examples
   * @param {{apply: () => void, reset: () => void, changed: () => void, fail: (message: string) => void}} actions
   */
  constructor(terms, examples, actions) {
    this.terms = terms;
    this.actions = actions;
    const changed = () => actions.changed();
    this.text = make("input", { name: "channels", autocomplete: "off", placeholder: terms.example });
    this.text.addEventListener("change", () => this.enter());
    this.count = make("span", { class: "hl-quiet", "aria-live": "polite" });
    this.kind = makeSelect({ name: "kind" }, terms.kinds);
    this.numbers = {};
    for (const [kind, fields] of Object.entries(terms.numbers)) this.numbers[kind] = this.fields(fields);
    this.other = new SecondImage(terms.second, examples, (second) => this.setSecond(second));
    this.where = makeSelect({ name: "where" }, terms.wheres);
    this.places = makeLabel(terms.where, this.where);
    this.apply = makeButton(terms.apply, () => {}, { type: "submit", class: "hl-button hl-primary" });
    this.resetButton = makeButton(terms.reset, actions.reset, { title: terms.reset_title });
    this.root = this.arrange();
    this.root.addEventListener("input", (event) => event.target !== this.text && changed());
    this.show();
  }

  fields(fields) {
    return fields.map(([name, text, value]) =>
      makeLabel(text, make("input", { name, value, inputmode: "decimal", autocomplete: "off", size: 6 })),
    );
  }

  arrange() {
    const { terms } = this;
    this.kind.addEventListener("input", () => this.show());
    return makeForm(
      { class: "hl-change-form" },
      () => this.enter() && this.actions.apply(),
      make(
        "div",
        { class: "hl-change-row" },
        makeLabel(terms.channels, this.text),
        makeButton(terms.top, () => selectTop(TOP), { title: terms.top_title }),
        makeButton(terms.all, () => select(Array.from({ length: state.channels.sheet?.total || 0 }, (_, k) => k))),
        makeButton(terms.none, () => select([])),
        this.count,
      ),
      make(
        "div",
        { class: "hl-change-row" },
        makeLabel(terms.kind, this.kind),
        ...Object.values(this.numbers).flat(),
        this.places,
        this.apply,
        this.resetButton,
      ),
      this.other.root,
    );
  }

  /** Show the fields of the chosen kind. */
  show() {
    const kind = this.kind.value;
    for (const [name, fields] of Object.entries(this.numbers)) for (const each of fields) each.hidden = name !== kind;
    this.other.root.hidden = this.places.hidden = kind !== "swap";
  }

  setSecond(second) {
    this.second = second;
    this.other.show(second);
    this.actions.changed();
  }

  /** Select the channels of the text field; returns whether they are valid. */
  enter() {
    const { sheet, selected } = state.channels;
    if (!sheet) return false;
    const { numbers, error } = parseChannels(this.text.value, sheet, this.terms);
    this.text.setAttribute("aria-invalid", String(Boolean(error)));
    if (error) {
      this.actions.fail(error);
      return false;
    }
    if (formatChannels(selected) !== formatChannels([...new Set(numbers)].sort((a, b) => a - b))) select(numbers);
    return true;
  }

  /** Show the selection in the text field, unless the user is typing there. */
  mark() {
    const { sheet, selected } = state.channels,
      text = formatChannels(selected);
    if (text !== this.shown) {
      this.text.value = this.shown = text;
      this.text.removeAttribute("aria-invalid");
    }
    const [count, total] = [selected.length, sheet?.total || 0].map((each) => each.toLocaleString("en"));
    this.count.textContent = fill(this.terms.count, { count, total });
    this.apply.disabled = !sheet;
  }

  reset() {
    this.root.reset();
    this.shown = null;
    this.setSecond(null);
    this.show();
    select([]);
  }

  /** Return the change, as `parse` in saliscope/compute/interventions/changes.py reads it. */
  get change() {
    const kind = this.kind.value,
      fields = (this.numbers[kind] || []).map((each) => each.querySelector("input"));
    return {
      channels: formatChannels(state.channels.selected),
      kind,
      numbers: Object.fromEntries(fields.map(({ name, value }) => [name, value])),
      ...(kind === "swap" ? { second: this.second, positions: this.where.value === "each" } : {}),
    };
  }
}
