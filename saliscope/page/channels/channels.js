// All channels of a layer as tiles. Sorting, filtering and coloring happen here; arrow keys move, Enter opens, and
// hovering shows the image under a tile.
import { bindChannel, bindSort } from "./address.js";
import { addName, drawImage, findOthers } from "./names.js";
import { formatStatistic, sortChannels } from "./order.js";
import { extend, select, toggle } from "./selection.js";
import { addMeasure, addTiles, clearTiles, keepTiles, tiles } from "./sheet.js";
import { isOutdated, open, openFirst } from "./state.js";
import { Toolbar } from "./tools.js";
import { loadImage } from "../drawing/surface.js";
import { whenAnswered, Component } from "../parts.js";
import { change, state, subscribe } from "../store.js";
import { reveal } from "../shared/elements.js";
import { ENDS, itemOfKey, ROW } from "../shared/keys.js";
import { followTiles } from "../drawing/tiles.js";
import { fill, make, makeButton, downloadFile } from "../wire.js";

const NARROW = 768; // px: below this width, the large channel is under the tiles

/** Return text for screen readers; with what is visible, it is the name of a tile. */
const spoken = (text) => make("span", { class: "hl-spoken", text });

function setIfChanged(node, name, text) {
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/** @type {Grid} the one of the page */
let grid = null;

/**
 * Select the channels with the largest effects, as soon as these are measured.
 * @param {number} count
 */
export const selectTop = (count) => grid.selectTop(count);

/**
 * Sort the channels by their value at a cell.
 * @param {number[]} cell row and column
 */
export const sortHere = (cell) => grid.sortHere(cell);

class Grid extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.at = 0;
    this.page = 0;
    this.nodes = new Map();
    this.value = undefined;
    this.measuring = null;
    this.waiting = null;
    this.top = 0;
    this.list = make("div", { class: "hl-channels-grid", role: "listbox", "aria-label": this.terms.label });
    this.note = make("p", { class: "hl-quiet", "aria-live": "polite" });
    this.pager = make("div", { class: "hl-pager" });
    this.tools = new Toolbar(this.terms, {
      order: () => this.sort(),
      show: () => this.showImages(),
      color: () => this.color(),
      png: () => this.png(),
      npy: () => trigger("save"),
      stop: () => trigger("stop", {}),
    });
    this.root.replaceChildren(
      this.tools.root,
      make("div", { class: "hl-channels-head" }, this.note, this.tools.legend),
      this.list,
      this.pager,
    );
    this.listen();
    subscribe(["channels", "question"], () => this.mark());
    subscribe(["channels"], () => this.followCell());
  }

  get sheet() {
    return state.channels.sheet;
  }

  listen() {
    const tile = (event) => event.target.closest("[role=option]");
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("click", (event) => {
      if (!tile(event)) return;
      const number = Number(tile(event).dataset.channel);
      if (event.shiftKey) return extend(number);
      if (state.channels.selecting || event.ctrlKey || event.metaKey) return toggle(number);
      open(number);
      if (window.innerWidth < NARROW)
        document.getElementById("hl-channels-pane").scrollIntoView({ behavior: "smooth" });
    });
    this.list.addEventListener("focusin", (event) => this.moveFocus([...this.list.children].indexOf(tile(event))));
    followTiles(this.list, (each) => this.point(each));
  }

  async receive(value) {
    if (value === this.value && value) return;
    this.value = value;
    if (value?.planes) await this.addTiles(value);
    else if (value?.kind) {
      this.measuring = null;
      addMeasure(value);
    } else if (value?.refused) this.resetSort();
    else if (value?.same) keepTiles(value);
    else if (value || !this.sheet) clearTiles(value);
    if (this.value !== value) return false;
    this.draw();
    if (value?.planes) {
      openFirst();
      this.showImages();
    }
  }

  async addTiles(value) {
    const image = await loadImage(value.crop.src);
    if (this.value !== value) return;
    this.image = image;
    if (addTiles(value)) {
      this.nodes.clear();
      this.page = 0;
      this.sprite = null;
    }
    this.waiting?.();
  }

  /** Make the server send all tiles again, with the names and images of the index that has changed. */
  forgetIndex() {
    if (this.sheet) change("channels", { sheet: { ...this.sheet, about: "" } });
  }

  /** Select the channels with the largest effects, as soon as these are measured. */
  selectTop(count) {
    this.top = count;
    this.tools.search.value = "";
    this.tools.sort("effect");
    this.sort();
  }

  /** Sort the channels by their value at a cell. */
  sortHere(cell) {
    change("channels", { here: cell });
    this.tools.sort("here");
    this.sort();
    this.list.scrollTop = 0;
  }

  /** Sort by the cell that is clicked, if the channels are sorted by one. */
  followCell() {
    const { here } = state.channels;
    if (here === this.here) return;
    this.here = here;
    this.tools.fitCell();
    if (this.tools.chosen.sort === "here") this.sort();
  }

  /** Draw the tiles with the values for this image, or with the images of the index as soon as they are loaded. */
  async showImages() {
    const { sheet } = this,
      source = sheet?.units?.sprites[this.tools.chosen.show];
    if (!source && !this.sprite) return;
    const sprite = source ? await loadImage(source) : null;
    if (sheet !== this.sheet || source !== sheet?.units?.sprites[this.tools.chosen.show]) return;
    this.sprite = sprite;
    this.color();
  }

  resetSort() {
    this.top = 0;
    this.tools.sort(this.measuring ? "mean" : undefined);
    this.measuring = null;
    [this.waiting, this.page] = [null, this.shown ?? 0];
  }

  /** Return the values used for sorting, or null while they are being requested. */
  measure() {
    const { sort } = this.tools.chosen,
      { figures, measures } = this.sheet;
    const measure = measures[sort],
      cell = sort === "here" ? state.channels.here : null;
    if (measure && (!cell || String(measure.cell) === String(cell))) return measure.values;
    if (!["gradient", "effect", "here"].includes(sort)) return figures[sort] || figures.mean;
    const wanted = cell ? `${sort} ${cell}` : sort;
    if (this.measuring !== wanted && !isOutdated()) {
      this.measuring = wanted;
      this.trigger("submit", { measure: sort, cell });
    }
    return null;
  }

  sort() {
    this.page = 0;
    if (this.sheet) this.draw();
  }

  draw() {
    const { sheet } = this;
    this.tools.fit(sheet, this.measuring);
    if (!sheet) {
      this.list.replaceChildren();
      this.pager.replaceChildren();
      this.note.textContent = this.props.empty;
      return this.mark();
    }
    const values = this.measure(),
      { sort, hide, word } = this.tools.chosen;
    const shown = values || sheet.figures.mean,
      kind = values ? sort : "mean";
    const hidden = [...(hide ? sheet.dead : []), ...findOthers(sheet, word)];
    const order = sortChannels(sheet.total, shown, kind, hidden);
    const pages = Math.max(1, Math.ceil(order.length / sheet.size));
    this.page = Math.min(this.page, pages - 1);
    const listed = order.slice(this.page * sheet.size, (this.page + 1) * sheet.size),
      missing = listed.filter((number) => !tiles.has(number));
    change("channels", { order });
    if (this.top && kind === "effect") {
      select(order.slice(0, this.top));
      this.top = 0;
    }
    this.note.textContent = this.describe(order.length, word, sheet.measures[kind]?.note);
    if (missing.length) return this.fetch(missing);
    this.shown = this.page;
    this.drawTiles(listed, shown, kind);
    this.pages(pages);
    this.mark();
  }

  /** Return the line above the tiles. */
  describe(count, word, measured) {
    const { terms, sheet } = this,
      counts = { count: count.toLocaleString("en"), total: sheet.total.toLocaleString("en"), text: word };
    const found = word ? fill(count ? terms.matches : terms.no_match, counts) : "";
    return [found, sheet.note, measured, state.indexed?.gone].filter(Boolean).join(" ");
  }

  /** Request tiles; the current tiles stay visible until the new ones arrive. */
  fetch(numbers) {
    this.root.dataset.old = "true";
    this.trigger("submit", { numbers, key: String(state.channels.key) });
  }

  drawTiles(listed, values, kind) {
    const had = this.list.contains(document.activeElement),
      word = this.terms.measure[kind];
    const signed = values.some((v) => v < 0);
    const [high, wide] = this.image ? [this.image.naturalHeight, this.image.naturalWidth] : this.sheet.grid;
    this.list.style.setProperty("--ratio", String(wide / high));
    this.list.classList.toggle("hl-channels-smooth", this.tools.chosen.smooth || Boolean(this.sprite));
    this.list.replaceChildren(
      ...listed.map((number) => {
        const label = Number.isFinite(values[number]) ? formatStatistic(values[number]) : this.terms.no_value;
        let tile = this.nodes.get(number);
        if (!tile) this.nodes.set(number, (tile = this.tile(number)));
        const value = Number.isFinite(values[number]) ? `${signed && values[number] > 0 ? "+" : ""}${label}` : "";
        tile.children[2].replaceChildren(spoken(`, ${word} ${value ? "" : label}`), value);
        tile.tabIndex = -1;
        return tile;
      }),
    );
    this.at = Math.max(0, listed.indexOf(state.channels.number));
    if (this.list.children[this.at]) this.list.children[this.at].tabIndex = 0;
    if (had) this.list.children[this.at]?.focus({ preventScroll: true });
  }

  tile(number) {
    const canvas = tiles.makeCanvas();
    this.paint(canvas, number);
    const tile = make(
      "button",
      { role: "option", "data-channel": number },
      canvas,
      make("b", {}, spoken(`${this.terms.channel} `), String(number)),
      make("span"),
    );
    addName(tile, this.sheet, number);
    return tile;
  }

  /** Draw what the tiles show of a channel. */
  paint(canvas, number) {
    if (this.sprite) drawImage(canvas, this.sheet.units, this.sprite, number);
    else tiles.draw(canvas, number, this.tools.chosen.shared);
  }

  /** Redraw all tiles with another color range, or with other images. */
  color() {
    for (const [number, tile] of this.nodes) this.paint(tile.firstElementChild, number);
    if (this.sheet) this.draw();
  }

  /** Show this tile over the image, and the previous tile without it. */
  point(tile) {
    if (tile === this.pointed) return;
    const { shared, smooth } = this.tools.chosen;
    if (this.pointed && tiles.has(Number(this.pointed.dataset.channel)))
      this.paint(this.pointed.firstElementChild, Number(this.pointed.dataset.channel));
    this.pointed = tile;
    if (tile && this.image)
      tiles.over(tile.firstElementChild, Number(tile.dataset.channel), this.image, { shared, smooth });
  }

  mark() {
    const { number, selecting, selected } = state.channels,
      among = new Set(selected);
    this.tools.markSelection(state.channels);
    this.root.dataset.old = String(isOutdated());
    this.list.dataset.selecting = String(selecting);
    for (const tile of this.list.children) {
      const own = Number(tile.dataset.channel);
      setIfChanged(tile, "aria-selected", String(own === number));
      if (selecting) setIfChanged(tile, "aria-checked", String(among.has(own)));
      else tile.removeAttribute("aria-checked");
    }
    const chosen = this.list.querySelector("[aria-selected=true]");
    if (chosen && number !== this.lastShown) reveal(this.list, chosen);
    this.lastShown = number;
  }

  /** Show another page of tiles. */
  turn(page) {
    this.page = page;
    this.draw();
    this.list.scrollTop = 0;
  }

  pages(count) {
    const { terms } = this;
    const turn = (page, text) => makeButton(text, () => this.turn(page), { disabled: page < 0 || page >= count });
    this.pager.replaceChildren(
      ...(count < 2
        ? []
        : [
            turn(this.page - 1, terms.previous),
            make("span", { text: `${terms.page} ${this.page + 1} ${terms.of} ${count}` }),
            turn(this.page + 1, terms.next),
          ]),
    );
  }

  moveFocus(index) {
    if (index < 0) return;
    const former = this.list.children[this.at];
    if (former) former.tabIndex = -1;
    this.at = index;
    this.list.children[index].tabIndex = 0;
  }

  key(event) {
    const across = getComputedStyle(this.list).gridTemplateColumns.split(" ").length;
    const rows = { ArrowUp: -across, ArrowDown: across, PageUp: -4 * across, PageDown: 4 * across };
    itemOfKey(event, [...this.list.querySelectorAll("button")], { ...ROW, ...rows, ...ENDS })?.focus();
  }

  /** Save every channel in the current order; missing tiles are fetched first. */
  async png() {
    if (!this.sheet) return;
    const { order } = state.channels,
      { about, size } = this.sheet;
    const isSame = () => this.sheet?.about === about;
    this.tools.png.disabled = true;
    for (let missing; (missing = order.filter((number) => !tiles.has(number))).length && isSame();) {
      await new Promise((resolve) => {
        this.waiting = () => resolve(null);
        this.fetch(missing.slice(0, size));
        setTimeout(resolve, 60000);
      });
    }
    this.waiting = null;
    if (isSame() && order.every((number) => tiles.has(number)))
      downloadFile(await tiles.sheet(order, this.sheet.note, this.tools.chosen), `${this.sheet.name}.png`);
    this.tools.png.disabled = false;
    this.mark();
  }
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  bindChannel();
  grid = new Grid(element, props, trigger);
  bindSort(grid.tools, () => grid.sort());
  const again = whenAnswered(element, (key) => {
    const { sheet, number } = state.channels;
    trigger("answered", { key, about: sheet?.about || "", whom: sheet?.whom || "", number: number ?? -1 });
  });
  subscribe(["indexed"], () => {
    grid.forgetIndex();
    again();
  });
  return (value) => grid.receive(value);
}
