// The pager below a map that is one of several planes (channels, components, heads), with a thumbnail of each. The
// server draws the selected plane.
import { Components } from "./components.js";
import { loadImage } from "../drawing/surface.js";
import { Tiles, followTiles } from "../drawing/tiles.js";
import { bindParameters } from "../shared/address.js";
import { subscribe } from "../store.js";
import { Component, mountClass } from "../parts.js";
import { reveal } from "../shared/elements.js";
import { ENDS, itemOfKey, ROW } from "../shared/keys.js";
import { floats, make, makeButton } from "../wire.js";

class Planes extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.value = null;
    this.tiles = new Tiles();
    this.image = null;
    const button = (step) => makeButton("", () => this.go(this.value.plane + step));
    this.previous = button(-1);
    this.next = button(1);
    this.word = make("span");
    this.count = make("span");
    this.number = make("input", { type: "number", step: 1, name: "plane", onchange: () => this.enter() });
    this.list = make("div", { class: "hl-planes-list", role: "listbox", "aria-orientation": "horizontal" });
    this.bar = make(
      "div",
      { class: "hl-pager hl-channels-pager" },
      this.previous,
      make("label", {}, this.word, this.number, this.count),
      this.next,
    );
    this.root.replaceChildren(this.bar, this.list);
    this.root.hidden = true;
    const tile = (event) => event.target.closest("[role=option]");
    this.list.addEventListener("click", (event) => {
      if (tile(event)?.dataset.plane) this.go(Number(tile(event).dataset.plane));
    });
    followTiles(this.list, (each) => this.point(each));
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.wanted = null; // the plane of the address, until it is shown
    this.chosen = null; // the plane that is shown, or was requested last
    this.changed = bindParameters(
      ["plane"],
      () => ({ plane: String(this.wanted ?? (this.chosen === this.value?.usual ? "" : (this.chosen ?? ""))) }),
      (values, coming) => this.restore(values, coming),
    );
    this.components = new Components(() => this.mark());
    this.root.append(this.components.note);
    subscribe(["preview", "drawn"], () => this.components.follow());
  }

  go(plane) {
    const { value } = this;
    if (!value || !Number.isInteger(plane)) return;
    this.components.show(false);
    const wanted = (plane + value.count) % value.count;
    this.chosen = wanted;
    this.changed();
    this.trigger("select", { plane: wanted });
  }

  /** Show the plane of an address. Without one, the server selects it. */
  restore({ plane = "" }, coming) {
    const usual = coming ? null : (this.value?.usual ?? null);
    this.wanted = /^\d{1,6}$/.test(plane) ? Number(plane) : usual;
    if (!coming) this.showWanted();
  }

  showWanted() {
    const { wanted, value } = this;
    if (!value || wanted === null || wanted >= value.count) return;
    this.wanted = null;
    if (wanted !== value.plane) this.go(wanted);
  }

  /** Handle a number that was entered. */
  enter() {
    const { value, number } = this,
      { first } = value.words;
    const wanted = Math.min(value.count - 1, Math.max(0, Math.round(number.valueAsNumber) - first));
    if (Number.isFinite(wanted)) this.go(wanted);
    else number.value = value.plane + first;
  }

  key(event) {
    const tiles = [...this.list.querySelectorAll("button")],
      next = itemOfKey(event, tiles, { ...ROW, ...ENDS });
    if (!next) return;
    for (const tile of tiles) tile.tabIndex = tile === next ? 0 : -1;
    next.focus();
  }

  async receive(value) {
    const former = this.value;
    this.value = value;
    this.chosen = value?.plane ?? null;
    this.showWanted();
    this.changed();
    this.root.hidden = !value;
    if (!value?.words.all) this.components.set(null);
    if (value) {
      const { words } = value;
      [this.word.textContent, this.count.textContent] = [words.word, words.count];
      [this.previous.textContent, this.next.textContent] = [words.previous, words.next];
      [this.number.min, this.number.max] = [words.first, value.count - 1 + words.first];
      this.number.value = value.plane + words.first;
      this.list.setAttribute("aria-label", words.label);
      if (former?.planes !== value.planes || former.crop.src !== value.crop.src) await this.drawThumbnails(value);
      if (this.value !== value) return false;
      this.mark();
    }
  }

  async drawThumbnails(value) {
    const image = await loadImage(value.crop.src),
      { tiles } = this,
      numbers = Array.from({ length: value.count }, (_, k) => k);
    if (this.value !== value) return;
    [this.image, this.pointed] = [image, null];
    tiles.reset({ cell: value.cell, range: [0, 1], signed: floats(value.lo).some((low) => low < 0) });
    tiles.add({ ...value, numbers });
    const [high, wide] = image ? [image.naturalHeight, image.naturalWidth] : value.cell;
    this.list.style.setProperty("--ratio", String(wide / high));
    this.components.set(value.words.all ? value : null, image);
    this.list.replaceChildren(
      ...this.components.tiles,
      ...numbers.map((plane) => {
        const canvas = tiles.makeCanvas();
        tiles.draw(canvas, plane, false);
        return make(
          "button",
          { role: "option", "data-plane": plane, "aria-label": `${value.words.word} ${plane + value.words.first}` },
          canvas,
          make("b", {}, ...this.components.swatch(plane), String(plane + value.words.first)),
        );
      }),
    );
  }

  /** Mark the plane of the map, and scroll its thumbnail into view. */
  mark() {
    for (const tile of this.list.querySelectorAll("button")) {
      const chosen = this.components.isShown
        ? !tile.dataset.plane
        : Number(tile.dataset.plane) === this.value.plane && Boolean(tile.dataset.plane);
      tile.setAttribute("aria-selected", String(chosen));
      tile.tabIndex = chosen ? 0 : -1;
      if (chosen) reveal(this.list, tile);
    }
  }

  /** Show this thumbnail over the image, and the previous one without it. */
  point(over) {
    const tile = over?.dataset.plane ? over : null;
    if (tile === this.pointed) return;
    const at = (each) => [each.firstElementChild, Number(each.dataset.plane)];
    if (this.pointed?.isConnected) this.tiles.draw(...at(this.pointed), false);
    this.pointed = tile;
    if (tile && this.image) this.tiles.over(...at(tile), this.image, { shared: false, smooth: true });
  }
}

export const mount = mountClass(Planes);
