// The limits of the colours: the map's own, the visitor's, or pinned while other maps come.
import { make } from "../wire.js";

/** A figure that its field holds whole. */
function figure(value) {
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential() : String(value);
}

function rounded(value) {
  return Number(value.toPrecision(4));
}

export class Limits {
  /** `change` is called when the colours are to be drawn with other limits. */
  constructor(change) {
    Object.assign(this, { change, range: null, pin: null, look: null, unit: "" });
    const field = (name, label) => make("input", { type: "number", step: "any", name, "aria-label": label, onchange: () => this.typed() });
    [this.low, this.high] = [field("low", "Lowest value shown"), field("high", "Highest value shown")];
    this.pinned = make("button", { type: "button", class: "hl-pin", "aria-pressed": "false", text: "Pin", onclick: () => this.toggle(),
      title: "Keep these limits for other layers, classes, methods and pictures" });
    this.back = make("button", { type: "button", class: "hl-link", text: "Reset", title: "The map's own limits", onclick: () => this.reset() });
    this.note = make("p", { class: "hl-note", role: "status", hidden: true });
    this.root = make("div", { class: "hl-limits", role: "group", "aria-label": "Limits" }, make("span", { text: "Limits" }),
      make("span", { class: "hl-range" }, this.low, make("span", { text: "to" }), this.high), this.pinned, this.back);
  }

  /** Another map comes: limits that are not pinned were those of the last one. */
  next() {
    if (!this.pin) this.range = null;
    this.say("");
  }

  /** The map's own limits again. */
  reset() {
    Object.assign(this, { range: null, pin: null });
    this.say("");
    this.change();
  }

  /** Limits from elsewhere, such as the address. */
  set(range, pinned = false) {
    this.range = range;
    this.pin = range && pinned ? { unit: this.unit } : null;
    this.change();
  }

  toggle() {
    if (this.pin) return this.reset();
    if (!this.look) return;
    this.range = this.range || [this.look.low, this.look.high].map(rounded);
    this.pin = { unit: this.unit };
    this.change();
  }

  typed() {
    const range = [this.low.valueAsNumber, this.high.valueAsNumber];
    const wrong = range.some(Number.isNaN) ? "Give both limits as numbers; the last valid ones are shown."
      : range[1] > range[0] ? "" : "The first limit must be below the second; the last valid ones are shown.";
    this.say(wrong);
    if (wrong) return;
    this.range = range;
    this.change();
  }

  say(wrong) {
    for (const input of [this.low, this.high]) {
      if (wrong) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
    this.wrong = wrong;
    this.explain();
  }

  /** Limits for a map: pinned ones of a map with both signs are from zero where the map has one. */
  of(map, colours, signed) {
    const { range } = this;
    const both = colours === "signed" || (colours === "auto" && map.signed && signed);
    return range && this.pin && !both && range[0] === -range[1] && map.lo >= 0 ? [0, range[1]] : range;
  }

  /** Show the limits in use. */
  show(look, unit) {
    Object.assign(this, { look, unit });
    const shown = [look.low, look.high].map((value) => figure(this.range ? value : rounded(value)));
    if (!this.wrong) [this.low.value, this.high.value] = shown;
    this.explain();
  }

  explain() {
    const { pin } = this;
    this.pinned.setAttribute("aria-pressed", String(Boolean(pin)));
    this.pinned.textContent = pin ? "Pinned" : "Pin";
    this.back.disabled = !this.range && !this.wrong;
    const name = (unit) => unit || "values without a unit";
    const other = pin && pin.unit !== this.unit
      ? `The limits were pinned for ${name(pin.unit)}; this map is in ${name(this.unit)}.` : "";
    this.note.textContent = this.wrong || other;
    this.note.hidden = !this.note.textContent;
    this.note.dataset.kind = this.wrong ? "error" : "note";
  }
}
