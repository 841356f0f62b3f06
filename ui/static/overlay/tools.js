// The controls below a map: what is shown, opacity, progress, colours, limits, smoothing, and the buttons that save.
import { NAMES } from "../drawing/colours.js";
import { make } from "../wire.js";

const tick = (name, text, title, onchange) => {
  const input = make("input", { type: "checkbox", name, checked: true, onchange });
  return { input, root: make("label", { class: "hl-tick", title }, input, make("span", { text })) };
};

export class Tools {
  /** `shown`, `history`, `limits` and `things` bring their own controls; `mix`, `colour` and `sign` are called on changes. */
  constructor({ shown, history, limits, things }, { mix, colour, choose, sign }) {
    this.shown = shown;
    this.opacity = make("input", { type: "range", min: 0, max: 100, value: 100, name: "opacity", oninput: mix });
    this.tint = make("select", { name: "colours", onchange: choose }, ...NAMES.map(([value, text]) => make("option", { value, text })));
    this.smooth = tick("smooth", "Smooth", "Off: the map's own cells, with their edges", colour);
    this.signed = tick("signed", "Signed", "Negative values in blue; off: magnitudes", sign);
    this.signed.root.hidden = true;
    this.saves = make("div", { class: "hl-saves" });
    this.buttons = [];
    const label = (text, input, kind) => make("label", { class: kind }, make("span", { text }), input);
    this.root = make("div", { class: "hl-tools" }, make("div", { class: "hl-controls" }, shown.root, label("Opacity", this.opacity, "hl-slide"), limits.root, limits.note,
      make("div", { class: "hl-look" }, label("Colours", this.tint, "hl-tint"), this.smooth.root, this.signed.root, things.label), history.root, this.saves));
  }

  /** Another button that saves what is shown. */
  button(text, onclick) {
    const button = make("button", { type: "button", class: "hl-button", text, onclick, disabled: true });
    this.buttons.push(button);
    this.saves.append(button);
    return button;
  }

  /** Whether there is a map to look at. */
  enable(on) {
    for (const button of this.buttons) button.disabled = !on;
    this.shown.enable(on);
    this.follow();
  }

  /** Opacity means something where photograph and map are on top of each other. */
  follow() {
    const { opacity } = this;
    opacity.disabled = !["overlay", "swipe"].includes(this.shown.chosen);
    opacity.setAttribute("aria-valuetext", `${opacity.value} per cent`);
  }
}
