// The toolbar over a map: display mode, opacity, colors and limits, and the save buttons.
import { makeLabel, makeSelect, makeTick } from "../shared/elements.js";
import { fill, make } from "../wire.js";
import { Popover } from "./popover.js";

export class Tools {
  /**
   * `display`, `limits`, `menu` and `objects` have their own controls; `mix`, `redraw` and `sign` are called on
   * changes.
   */
  constructor(terms, { display, limits, menu, objects }, { mix, redraw, choose, sign }) {
    this.terms = terms;
    this.display = display;
    this.menu = menu;
    this.opacity = make("input", { type: "range", min: 0, max: 100, value: 100, name: "opacity", oninput: mix });
    this.tint = makeSelect({ name: "colors", onchange: choose }, Object.entries(terms.color_maps));
    const tick = (name, onchange) =>
      makeTick(terms[name], { name, checked: true, onchange }, { title: terms[`${name}_title`] });
    this.smooth = tick("smooth", redraw);
    this.signed = tick("signed", sign);
    this.signed.root.hidden = true;
    this.colors = new Popover(
      terms.colors_and_range,
      makeLabel(terms.colors, this.tint),
      limits.root,
      this.smooth.root,
      this.signed.root,
    );
    this.root = make(
      "div",
      { class: "hl-tools" },
      display.root,
      makeLabel(terms.opacity, this.opacity, { class: "hl-slide" }),
      this.colors.root,
      objects.label,
      make("div", { class: "hl-saves" }, menu.root),
    );
  }

  /** Enable or disable the controls. */
  enable(on) {
    for (const button of [this.menu.button, this.colors.button]) button.disabled = !on;
    this.display.enable(on);
    this.follow();
  }

  /** Opacity applies only if image and map are blended. */
  follow() {
    const { opacity } = this;
    opacity.disabled = !["overlay", "swipe"].includes(this.display.chosen);
    opacity.setAttribute("aria-valuetext", fill(this.terms.percent, { percent: opacity.value }));
  }
}
