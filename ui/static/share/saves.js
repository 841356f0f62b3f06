// The menu "Save" below a map.
import { bundle } from "./bundle.js";
import { png, svg, transparent } from "./figure.js";
import { make, npy, save } from "../wire.js";

let menus = 0;

/** A button that opens a list of buttons: `items` are [text, title, act]; an error of `act` is said beside it. */
export class Menu {
  constructor(text, items, opened = () => {}) {
    this.opened = opened;
    this.entries = items.map(([label, title, act]) => make("button", { type: "button", title, text: label, onclick: () => this.act(act) }));
    this.list = make("div", { class: "hl-share-items", id: `hl-share-${++menus}`, hidden: true }, ...this.entries);
    this.button = make("button", { type: "button", class: "hl-button", text, "aria-expanded": "false", "aria-controls": this.list.id,
      disabled: true, onclick: () => this.open(this.list.hidden) });
    this.note = make("p", { class: "hl-quiet hl-share-note", role: "status", hidden: true });
    this.root = make("div", { class: "hl-share" }, this.button, this.list, this.note);
    this.root.addEventListener("keydown", (event) => { if (event.key === "Escape" && !this.list.hidden) { this.open(false); this.button.focus(); } });
    this.root.addEventListener("focusout", (event) => { if (event.relatedTarget && !this.root.contains(event.relatedTarget)) this.open(false); });
    document.addEventListener("pointerdown", (event) => { if (!this.root.contains(event.target)) this.open(false); });
  }

  open(on) {
    if (on !== this.list.hidden) return;
    if (on) this.opened();
    this.say("");
    this.list.hidden = !on;
    this.button.setAttribute("aria-expanded", String(on));
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  async act(work) {
    this.open(false);
    this.button.focus();
    this.say("Packing…");
    try {
      await work();
      this.say("");
    } catch (error) {
      this.say(error.message);
    }
  }
}

const FIGURE = "Photograph, map, colour bar and caption, at twice the size", WORDS = "The same as a drawing, with text that can be edited";
const BUNDLE = "Photograph, raw map, figure and every parameter, for python app.py replay";
const STOPPED = "A stopped map depends on the time that it had: it cannot be recomputed";

/** The menu of one map; `view` is in overlay.js. */
export function saves(view) {
  const stem = () => view.value.name;
  const plate = () => {
    const { surface, final, value, tools, shown, scale } = view;
    return { image: surface.image, look: final, value, opacity: tools.opacity.value / 100, alone: shown.chosen === "map",
      bar: scale.bar, ends: [...scale.ends.children].map((end) => end.textContent) };
  };
  const looked = () => ({ ...view.looks?.read(), colours: view.final.colours, limits: [view.final.low, view.final.high], smooth: view.final.smooth });
  const menu = new Menu("Save", [
    ["Figure, PNG", FIGURE, async () => save(await png([plate()]), `${stem()}-figure.png`)],
    ["Figure, SVG", WORDS, async () => save(svg([plate()]), `${stem()}-figure.svg`)],
    ["Map alone, PNG", "Transparent where the map is small", async () => save(await transparent(plate()), `${stem()}-map.png`)],
    ["As shown, PNG", "In the photograph's own pixels", () => view.png()],
    ["Values, .npy", "The raw map, float32", () => save(npy(view.map.values, [view.map.h, view.map.w]), `${stem()}.npy`)],
    ["Bundle, zip", BUNDLE, async () => {
      const { value } = view, name = stem();
      save(await bundle([{ value, view: looked(), figure: await png([plate()]) }]), `${name}-bundle.zip`);
    }],
  ], () => {
    view.history.back();                                 // to the whole map, where one looks at a partial one
    const last = menu.entries.at(-1), { value } = view;
    last.hidden = !(value && value.record);
    last.disabled = Boolean(value && value.state !== "done");
    last.title = last.disabled ? STOPPED : BUNDLE;
  });
  return menu;
}
