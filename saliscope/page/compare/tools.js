// Controls of the comparison: panels, and how all maps are drawn. Drawing needs no request.
import { ComparisonExport } from "../share/comparison.js";
import { Popover } from "../overlay/popover.js";
import { makeSelect } from "../shared/elements.js";
import { fill, make, makeButton } from "../wire.js";

const label = (title, ...parts) =>
  make("label", { title }, ...parts.map((part) => (typeof part === "string" ? make("span", { text: part }) : part)));

export class Tools {
  constructor(board) {
    // "pinned" or "free"; null: "pinned"
    this.board = board;
    this.limits = null;
    const { terms } = board,
      draw = () => board.draw();
    const tick = (name, checked) => make("input", { type: "checkbox", name, checked, onchange: draw });
    const choose = (value) => {
      this.limits = value;
      draw();
    };
    const radio = (value) =>
      make("input", { type: "radio", name: "hl-compare-limits", value, onchange: () => choose(value) });
    this.more = makeButton(terms.add, () => board.propose(), { title: terms.add_hint });
    this.two = makeButton(terms.pair, () => board.comparePredictions(), { title: terms.pair_hint });
    this.stop = makeButton(terms.stop, () => board.stop(), { "aria-label": terms.stop_name });
    this.saves = new ComparisonExport(board);
    const slider = { type: "range", min: 0, max: 100, value: 100, name: "opacity" };
    this.slider = make("input", { ...slider, oninput: () => board.mix() });
    this.tint = makeSelect({ name: "colors", onchange: draw }, Object.entries(terms.color_maps));
    this.smooth = tick("smooth", true);
    this.signed = tick("signed", false);
    this.pinned = radio("pinned");
    this.free = radio("free");
    this.pinned.checked = true;
    this.element = this.arrange();
  }

  arrange() {
    const { terms } = this.board;
    const limits = make(
      "div",
      { class: "hl-compare-limits", role: "radiogroup", "aria-label": terms.limits },
      make("span", { text: terms.limits }),
      label(terms.pinned_hint, this.pinned, terms.pinned),
      label(terms.free_hint, this.free, terms.free),
    );
    const colors = new Popover(
      terms.colors,
      limits,
      label("", terms.color_map, this.tint),
      label("", this.smooth, terms.smooth),
      label(terms.signed_hint, this.signed, terms.signed),
    );
    return make(
      "div",
      { class: "hl-compare-tools" },
      ...[this.more, this.two, this.stop, label("", terms.opacity, this.slider), colors.root],
      this.saves.menu.root,
    );
  }

  /** Return the settings that differ from the defaults. */
  toQuery() {
    const query = new URLSearchParams();
    const values = {
      limits: this.limits || "",
      colors: this.tint.value === "auto" ? "" : this.tint.value,
      opacity: this.slider.value === "100" ? "" : this.slider.value,
      smooth: this.smooth.checked ? "" : "0",
      signed: this.signed.checked ? "1" : "",
    };
    for (const [name, value] of Object.entries(values)) if (value) query.set(name, value);
    return query;
  }

  restore(query) {
    const known = (name, values) => (values.includes(query.get(name)) ? query.get(name) : null);
    this.limits = known("limits", ["pinned", "free"]);
    this.tint.value = known("colors", Object.keys(this.board.terms.color_maps)) || "auto";
    this.slider.value = /^\d{1,3}$/.test(query.get("opacity")) ? query.get("opacity") : 100;
    this.smooth.checked = query.get("smooth") !== "0";
    this.signed.checked = query.get("signed") === "1";
    this.board.draw();
  }

  get opacity() {
    this.slider.setAttribute("aria-valuetext", fill(this.board.terms.percent, { percent: this.slider.value }));
    return this.slider.valueAsNumber / 100;
  }

  /** Check whether this map is drawn by magnitude. */
  magnitudes(map) {
    return Boolean(map.by_size) && !this.signed.checked && this.tint.value !== "signed";
  }

  /** Whether panels of the same model, method and layer have one color range. */
  get shared() {
    return this.limits !== "free";
  }

  /** Return how maps of one kind are drawn; all get the same colors. */
  style(maps) {
    [this.pinned.checked, this.free.checked] = [this.shared, !this.shared];
    const minus = maps.some((map) => map.lo < 0 && !this.magnitudes(map));
    const colors = this.tint.value === "auto" ? (minus ? "signed" : "magma") : this.tint.value;
    return { colors, limits: null, smooth: this.smooth.checked };
  }
}
