// The "Save" menu below a map.
import { bundle } from "./bundle.js";
import { png, svg, transparent } from "./figure.js";
import { dismiss } from "../page/dismiss.js";
import { make, encodeNpy, downloadFile } from "../wire.js";

let menus = 0;

/** A button that opens a list of buttons: `items` are [text, title, act]; errors of `act` are shown next to it. */
class Menu {
  constructor(terms, items, opened) {
    Object.assign(this, { terms, opened });
    this.entries = items.map(([label, title, act]) =>
      make("button", { type: "button", title, text: label, onclick: () => this.act(act) }),
    );
    this.list = make("div", { class: "hl-share-items", id: `hl-share-${++menus}`, hidden: true }, ...this.entries);
    this.button = make("button", {
      type: "button",
      class: "hl-button",
      text: terms.save,
      "aria-expanded": "false",
      "aria-controls": this.list.id,
      disabled: true,
      onclick: () => this.open(this.list.hidden),
    });
    this.note = make("p", { class: "hl-quiet hl-share-note", role: "status", hidden: true });
    this.root = make("div", { class: "hl-share" }, this.button, this.list, this.note);
    dismiss(this.root, this.button, this.list, () => this.open(false));
  }

  open(on) {
    if (on !== this.list.hidden) return;
    if (on) this.opened();
    this.showMessage("");
    this.list.hidden = !on;
    this.button.setAttribute("aria-expanded", String(on));
  }

  showMessage(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  async act(work) {
    this.open(false);
    this.button.focus();
    this.showMessage(this.terms.preparing);
    try {
      await work();
      this.showMessage("");
    } catch (error) {
      this.showMessage(error.message);
    }
  }
}

/**
 * Create the menu of one map.
 * @param {object} view the `View` of overlay.js
 * @returns {Menu}
 */
export function createSaveMenu(view) {
  const terms = view.props.save;
  const panel = () => ({
    image: view.surface.image,
    rendering: view.final,
    value: view.value,
    opacity: view.tools.opacity.value / 100,
    mapOnly: view.display.chosen === "map",
    bar: view.scale.bar,
    ticks: view.scale.ticks,
    label: view.scale.label,
    drawing: view.scale.drawing.textContent,
  });
  const settings = () => ({
    ...view.binding?.read(),
    colours: view.final.colors,
    limits: [view.final.low, view.final.high],
    smooth: view.final.smooth,
  });
  const file = (suffix, create) => async () => {
    const { name } = view.value;
    downloadFile(await create(), `${name}${suffix}`);
  };
  const items = [
    [...terms.png, file("-figure.png", () => png([panel()]))],
    [...terms.svg, file("-figure.svg", () => svg([panel()]))],
    [...terms.map, file("-map.png", () => transparent(panel()))],
    [...terms.shown, () => view.png()],
    [...terms.values, file(".npy", () => encodeNpy(view.map.values, [view.map.h, view.map.w]))],
    [
      ...terms.bundle,
      file("-bundle.zip", async () => {
        const { value } = view;
        return bundle([{ value, view: settings(), figure: await png([panel()]) }], terms);
      }),
    ],
  ];
  const menu = new Menu(terms, items, () => {
    view.history.back(); // go back to the complete map from a partial one
    const last = menu.entries.at(-1),
      { value } = view;
    last.hidden = !(value && value.record);
    last.disabled = Boolean(value && value.state !== "done");
    last.title = last.disabled ? terms.stopped : terms.bundle[1];
  });
  return menu;
}
