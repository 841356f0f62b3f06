// The controls of the comparison: panels, and how all maps are drawn. None of the latter makes a request.
import { NAMES } from "../drawing/colours.js";
import { Saves } from "../share/comparison.js";
import { make } from "../wire.js";

export class Tools {
  constructor(board) {
    Object.assign(this, { board, limits: null, units: "", said: "" });          // "pinned", "free", or by the units until one is chosen
    const { terms } = board, draw = () => board.draw();
    const button = (text, onclick, title) => make("button", { type: "button", class: "hl-button", text, onclick, title });
    const label = (title, ...parts) => make("label", { title }, ...parts.map((part) => (typeof part === "string" ? make("span", { text: part }) : part)));
    const tick = (name, checked) => make("input", { type: "checkbox", name, checked, onchange: draw });
    const radio = (value) => make("input", { type: "radio", name: "hl-compare-limits", value, onchange: () => { this.limits = value; draw(); } });
    this.more = button(terms.add, () => board.add(null, true));
    this.two = button(terms.pair, () => board.predicted(), terms.pair_hint);
    this.stop = button(terms.stop, () => board.trigger("focus", {}));
    this.saves = new Saves(board);
    this.slider = make("input", { type: "range", min: 0, max: 100, value: 100, name: "opacity", oninput: () => board.mix() });
    this.tint = make("select", { name: "colours", onchange: draw }, ...NAMES.map(([value, text]) => make("option", { value, text })));
    [this.smooth, this.signed] = [tick("smooth", true), tick("signed", false)];
    [this.pinned, this.free] = [radio("pinned"), radio("free")];
    const limits = make("div", { class: "hl-compare-limits", role: "radiogroup", "aria-label": terms.limits }, make("span", { text: terms.limits }),
      label(terms.pinned_hint, this.pinned, terms.pinned), label(terms.free_hint, this.free, terms.free));
    this.note = make("p", { class: "hl-quiet hl-compare-note", role: "status" });
    this.element = make("div", { class: "hl-compare-bar" },
      make("div", { class: "hl-compare-tools" }, this.more, this.two, this.stop, ...this.saves.buttons),
      make("div", { class: "hl-compare-tools" }, label("", terms.opacity, this.slider), limits, label("", terms.colours, this.tint),
        label("", this.smooth, terms.smooth), label(terms.signed_hint, this.signed, terms.signed)),
      this.note);
  }

  /** A sentence below the controls, behind that on the units. */
  say(text) {
    this.said = text;
    this.note.textContent = [this.units, text].filter(Boolean).join(" ");
  }

  /** What differs from the page as it opens. */
  written() {
    const query = new URLSearchParams();
    const values = { limits: this.limits || "", colours: this.tint.value === "auto" ? "" : this.tint.value,
      opacity: this.slider.value === "100" ? "" : this.slider.value, smooth: this.smooth.checked ? "" : "0", signed: this.signed.checked ? "1" : "" };
    for (const [name, value] of Object.entries(values)) if (value) query.set(name, value);
    return query;
  }

  restore(query) {
    const known = (name, values) => (values.includes(query.get(name)) ? query.get(name) : null);
    this.limits = known("limits", ["pinned", "free"]);
    this.tint.value = known("colours", NAMES.map(([value]) => value)) || "auto";
    this.slider.value = /^\d{1,3}$/.test(query.get("opacity")) ? query.get("opacity") : 100;
    this.smooth.checked = query.get("smooth") !== "0";
    this.signed.checked = query.get("signed") === "1";
    this.board.draw();
  }

  get opacity() {
    this.slider.setAttribute("aria-valuetext", `${this.slider.value} per cent`);
    return this.slider.value / 100;
  }

  /** Whether this map is drawn by the size of its values. */
  magnitudes(map) {
    return Boolean(map.by_size) && !this.signed.checked && this.tint.value !== "signed";
  }

  /** How these plates are drawn: {limits, style}; the same colours for all. */
  settle(plates) {
    const units = new Set(plates.map((plate) => plate.unit)), limits = this.limits || (units.size > 1 ? "free" : "pinned");
    [this.pinned.checked, this.free.checked] = [limits === "pinned", limits === "free"];
    this.units = limits === "pinned" && units.size > 1 ? this.board.terms.units : "";
    this.say(this.said);
    const minus = plates.some(({ map }) => map.lo < 0 && !this.magnitudes(map));
    const colours = this.tint.value === "auto" ? (minus ? "signed" : "magma") : this.tint.value;
    return { limits, style: { colours, limits: null, smooth: this.smooth.checked } };
  }
}
