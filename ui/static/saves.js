// The menu "Save" below a map.
import { bundle } from "./bundle.js";
import { png, svg, transparent } from "./figure.js";
import { make, npy, save } from "./wire.js";

export class Saves {
  /** `view` is the map's: see overlay.js. */
  constructor(view) {
    this.view = view;
    const item = (text, title, act, kind) => make("button", { type: "button", title, onclick: () => this.act(act), "data-kind": kind }, make("span", { text }));
    this.items = make("div", { class: "hl-share-items", id: `hl-share-${Math.random().toString(36).slice(2)}`, hidden: true },
      item("Figure, PNG", "Photograph, map, colour bar and caption, at twice the size", () => this.file(png([this.plate()]), "-figure.png")),
      item("Figure, SVG", "The same with text that can be edited", () => this.file(svg([this.plate()]), "-figure.svg")),
      item("Map alone, PNG", "Transparent where the map is small", () => this.file(transparent(this.plate()), "-map.png")),
      item("As shown, PNG", "In the photograph's own pixels", () => view.png()),
      item("Values, .npy", "The raw map, float32", () => this.file(npy(view.map.values, [view.map.h, view.map.w]), ".npy")),
      item("Bundle, zip", "Photograph, map, figure and every parameter, for python app.py replay", () => this.bundle(), "bundle"));
    this.button = make("button", { type: "button", class: "hl-button", text: "Save", "aria-expanded": "false", "aria-controls": this.items.id,
      disabled: true, onclick: () => this.open(this.items.hidden) });
    this.note = make("p", { class: "hl-quiet hl-share-note", role: "status", hidden: true });
    this.root = make("div", { class: "hl-share" }, this.button, this.items, this.note);
    this.root.addEventListener("keydown", (event) => { if (event.key === "Escape" && !this.items.hidden) { this.open(false); this.button.focus(); } });
    document.addEventListener("pointerdown", (event) => { if (!this.root.contains(event.target)) this.open(false); });
    this.root.addEventListener("focusout", (event) => { if (event.relatedTarget && !this.root.contains(event.relatedTarget)) this.open(false); });
  }

  open(on) {
    if (on === !this.items.hidden) return;
    const { value } = this.view, last = this.items.querySelector("[data-kind=bundle]");
    last.hidden = !(value && value.record);
    last.disabled = !last.hidden && value.state !== "done";
    if (last.disabled) last.title = "A stopped map depends on the time that it had: it cannot be recomputed";
    this.items.hidden = !on;
    this.button.setAttribute("aria-expanded", String(on));
    this.say("");
  }

  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  async act(work) {
    this.view.history.back();
    this.open(false);
    this.button.focus();
    try { await work(); } catch (error) { this.say(error.message); }
  }

  async file(content, end) {
    save(await content, `${this.view.value.name}${end}`);
  }

  /** What the map is drawn from, as figure.js takes it. */
  plate() {
    const { surface, final, value, tools, shown, scale } = this.view;
    return { image: surface.image, look: final, value, opacity: tools.opacity.value / 100, alone: shown.chosen === "map",
      bar: scale.bar, ends: [...scale.ends.children].map((end) => end.textContent) };
  }

  async bundle() {
    const { value, looks, look } = this.view, { colours, low, high, smooth } = look;
    this.say("Packing…");
    const view = { ...looks?.read(), colours, limits: [low, high], smooth };
    save(await bundle([{ value, view, figure: await png([this.plate()]) }]), `${value.name}-bundle.zip`);
    this.say("");
  }
}
