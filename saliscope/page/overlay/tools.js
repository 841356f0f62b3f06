// The toolbar over a map: display mode, opacity, colors and limits, and the save buttons.
import { fill, make, makeButton } from "../wire.js";
import { Popover } from "./popover.js";

const tick = (name, text, title, onchange) => {
  const input = make("input", { type: "checkbox", name, checked: true, onchange });
  return { input, root: make("label", { class: "hl-tick", title }, input, make("span", { text })) };
};

export class Tools {
  /**
   * `display`, `limits` and `objects` have their own controls; `mix`, `redraw` and `sign` are called on
   * changes.
   */
  constructor(terms, { display, limits, objects }, { mix, redraw, choose, sign }) {
    this.terms = terms;
    this.display = display;
    this.opacity = make("input", { type: "range", min: 0, max: 100, value: 100, name: "opacity", oninput: mix });
    this.tint = make(
      "select",
      { name: "colors", onchange: choose },
      ...Object.entries(terms.color_maps).map(([value, text]) => make("option", { value, text })),
    );
    this.smooth = tick("smooth", terms.smooth, terms.smooth_title, redraw);
    this.signed = tick("signed", terms.signed, terms.signed_title, sign);
    this.signed.root.hidden = true;
    this.saves = make("div", { class: "hl-saves" });
    this.buttons = [];
    const label = (text, input, kind) => make("label", { class: kind }, make("span", { text }), input);
    this.colors = new Popover(
      terms.colors_and_range,
      label(terms.colors, this.tint, "hl-tint"),
      limits.root,
      this.smooth.root,
      this.signed.root,
    );
    this.root = make(
      "div",
      { class: "hl-tools" },
      display.root,
      label(terms.opacity, this.opacity, "hl-slide"),
      this.colors.root,
      objects.label,
      this.saves,
    );
  }

  /** Add a save button. */
  button(text, onclick) {
    const button = makeButton(text, onclick, { disabled: true });
    this.buttons.push(button);
    this.saves.append(button);
    return button;
  }

  /** Enable or disable the controls. */
  enable(on) {
    for (const button of [...this.buttons, this.colors.button]) button.disabled = !on;
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
