// Color limits: the map's own, the user's, or pinned across maps.
import { showText } from "../shared/elements.js";
import { fill, formatExact, make } from "../wire.js";

function round(value) {
  return Number(value.toPrecision(4));
}

export class Limits {
  /** `change` is called if the limits change. */
  constructor(terms, change) {
    this.terms = terms;
    this.change = change;
    this.range = null;
    this.pin = null;
    this.rendering = null;
    this.unit = "";
    const field = (name, label) =>
      make("input", { type: "number", step: "any", name, "aria-label": label, onchange: () => this.readFields() });
    this.low = field("low", terms.low);
    this.high = field("high", terms.high);
    this.pinned = make("button", {
      class: "hl-pinned",
      "aria-pressed": "false",
      text: terms.pin,
      onclick: () => this.toggle(),
      title: terms.pin_title,
    });
    this.back = make("button", {
      class: "hl-link",
      text: terms.reset,
      title: terms.reset_title,
      onclick: () => this.reset(),
    });
    this.note = make("p", { class: "hl-note", role: "status", hidden: true });
    this.root = make(
      "div",
      { class: "hl-limits", role: "group", "aria-label": terms.limits },
      make("span", { text: terms.limits }),
      make("span", { class: "hl-range" }, this.low, make("span", { text: terms.to }), this.high),
      this.pinned,
      this.back,
    );
  }

  /** Prepare for another map: reset limits that are not pinned. */
  next() {
    if (!this.pin) this.range = null;
    this.showMessage("");
  }

  /** Reset to the map's own limits. */
  reset() {
    Object.assign(this, { range: null, pin: null });
    this.showMessage("");
    this.change();
  }

  /** Set limits from elsewhere, such as the address. */
  set(range, pinned = false) {
    this.range = range;
    this.pin = range && pinned ? { unit: this.unit } : null;
    this.change();
  }

  toggle() {
    if (this.pin) return this.reset();
    if (!this.rendering) return;
    this.range = this.range || [this.rendering.low, this.rendering.high].map(round);
    this.pin = { unit: this.unit };
    this.change();
  }

  /** The limits that apply to a map in this unit, or null: pinned limits mean nothing in another unit. */
  applied(unit = this.unit) {
    return this.pin && this.pin.unit !== unit ? null : this.range;
  }

  readFields() {
    const range = [this.low.valueAsNumber, this.high.valueAsNumber];
    const error = range.some(Number.isNaN) ? this.terms.no_number : range[1] > range[0] ? "" : this.terms.not_less;
    this.showMessage(error);
    if (error) return;
    this.range = range;
    if (this.pin) this.pin = { unit: this.unit };
    this.change();
  }

  showMessage(error) {
    for (const input of [this.low, this.high]) {
      if (error) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
    this.error = error;
    this.updateNote();
  }

  /** Return the limits for a map; pinned symmetric limits start at zero for a map without negative values. */
  of(map, colors, signed, unit) {
    const range = this.applied(unit);
    const symmetric = colors === "signed" || (colors === "auto" && map.signed && signed);
    return range && this.pin && !symmetric && range[0] === -range[1] && map.lo >= 0 ? [0, range[1]] : range;
  }

  /** Show the current limits. */
  show(rendering, unit) {
    Object.assign(this, { rendering, unit });
    const shown = [rendering.low, rendering.high].map((value) => formatExact(this.applied() ? value : round(value)));
    if (!this.error) [this.low.value, this.high.value] = shown;
    this.updateNote();
  }

  updateNote() {
    const { pin, terms } = this;
    this.pinned.setAttribute("aria-pressed", String(Boolean(pin)));
    this.pinned.textContent = pin ? terms.pinned : terms.pin;
    this.back.disabled = !this.range && !this.error;
    const name = (unit) => unit || terms.no_unit;
    const other =
      pin && pin.unit !== this.unit ? fill(terms.other_unit, { pinned: name(pin.unit), unit: name(this.unit) }) : "";
    showText(this.note, this.error || other);
    this.note.dataset.kind = this.error ? "error" : "note";
  }
}
