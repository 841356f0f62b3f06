// The channels of a layer as a grid of tiles cut from one sheet: arrows move, Enter opens.
import { paint } from "./colours.js";
import { bytes, floats, follow, make, painted, short } from "./wire.js";

class Grid {
  constructor(element, props, trigger) {
    Object.assign(this, { element, props, trigger, at: 0, sheet: null, value: null });
    this.list = make("div", { class: "hl-grid", role: "listbox", "aria-label": "Channels" });
    this.note = make("p", { class: "hl-quiet" });
    this.pager = make("div", { class: "hl-pager" });
    element.firstElementChild.replaceChildren(this.note, this.list, this.pager);
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("focusin", (event) => this.rove([...this.list.children].indexOf(event.target)));
    this.list.addEventListener("click", (event) => {
      const tile = event.target.closest("[role=option]");
      if (tile) this.open([...this.list.children].indexOf(tile));
    });
  }

  async show() {
    const since = performance.now();
    const value = this.props.value;
    if (value === this.value && value) return;
    this.value = value;
    if (!value || !value.planes) {
      this.list.replaceChildren();
      this.pager.replaceChildren();
      this.note.textContent = (value && value.empty) || this.props.empty;
      return painted(this.element, value && value.id, since);
    }
    const address = await this.draw(value);
    if (this.value !== value) return;
    this.note.textContent = value.note;
    this.tiles(value, address);
    this.pages(value);
    painted(this.element, value.id, since);
  }

  /** Draw every channel into one sheet; returns its URL. */
  async draw(value) {
    const [h, w] = value.cell;
    const planes = bytes(value.planes), lo = floats(value.lo), hi = floats(value.hi);
    const count = value.numbers.length;
    this.columns = Math.ceil(Math.sqrt(count));
    const sheet = make("canvas", { width: this.columns * w, height: Math.ceil(count / this.columns) * h });
    const context = sheet.getContext("2d");
    const pixels = context.createImageData(w, h);
    const values = new Float32Array(h * w);
    for (let k = 0; k < count; k++) {
      const step = (hi[k] - lo[k]) / 255;
      for (let i = 0; i < values.length; i++) values[i] = lo[k] + planes[k * h * w + i] * step;
      paint(values, pixels.data, { lo: Math.min(0, lo[k]), hi: hi[k], colours: "magma" });
      context.putImageData(pixels, (k % this.columns) * w, Math.floor(k / this.columns) * h);
    }
    const blob = await new Promise((resolve) => sheet.toBlob(resolve));
    if (this.sheet) URL.revokeObjectURL(this.sheet);
    this.sheet = URL.createObjectURL(blob);
    return this.sheet;
  }

  tiles(value, address) {
    const rows = Math.ceil(value.numbers.length / this.columns);
    const measure = value.sort === "effect" && value.effect ? value.effect : value.mean;
    const most = Math.max(...measure.map(Math.abs), 1e-30);
    const had = this.list.contains(document.activeElement);
    this.list.style.setProperty("--sheet", `url("${address}")`);
    this.list.style.setProperty("--columns", this.columns);
    this.list.style.setProperty("--rows", rows);
    this.at = 0;
    this.list.replaceChildren(...value.numbers.map((number, k) => {
      const tile = make("button", { type: "button", role: "option", tabindex: k ? -1 : 0, "data-channel": number,
        "aria-selected": String(number === value.chosen), title: `Channel ${number}: ${value.measure} ${short(measure[k])}`,
        "aria-label": `Channel ${number}, ${value.measure} ${short(measure[k])}` });
      const picture = make("span", { class: "hl-tile" });
      const across = this.columns > 1 ? (100 * (k % this.columns)) / (this.columns - 1) : 0;
      const down = rows > 1 ? (100 * Math.floor(k / this.columns)) / (rows - 1) : 0;
      picture.style.backgroundPosition = `${across}% ${down}%`;
      const bar = make("i", { class: measure[k] < 0 ? "hl-minus" : "hl-plus" });
      bar.style.width = `${(100 * Math.abs(measure[k])) / most}%`;
      tile.append(picture, make("span", { class: "hl-number", text: number }), bar);
      return tile;
    }));
    if (had) this.list.children[0]?.focus({ preventScroll: true });
  }

  pages(value) {
    const turn = (page, text) => make("button", { type: "button", class: "hl-button", text, disabled: page < 0 || page >= value.pages,
      onclick: () => this.trigger("submit", { page, key: this.value.key }) });
    this.pager.replaceChildren(...(value.pages < 2 ? [] : [turn(value.page - 1, "Previous"),
      make("span", { text: `Page ${value.page + 1} of ${value.pages}` }), turn(value.page + 1, "Next")]));
  }

  rove(index) {
    if (index < 0) return;
    const old = this.list.children[this.at];
    if (old) old.tabIndex = -1;
    this.at = index;
    this.list.children[index].tabIndex = 0;
  }

  key(event) {
    const count = this.list.children.length;
    const across = getComputedStyle(this.list).gridTemplateColumns.split(" ").length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, PageUp: -4 * across, PageDown: 4 * across }[event.key];
    let next = null;
    if (step) next = Math.min(count - 1, Math.max(0, this.at + step));
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = count - 1;
    if (next === null || !count) return;
    event.preventDefault();
    this.rove(next);
    this.list.children[next].focus();
  }

  open(index) {
    const tile = this.list.children[index];
    if (!tile) return;
    for (const other of this.list.querySelectorAll("[aria-selected=true]")) other.setAttribute("aria-selected", "false");
    tile.setAttribute("aria-selected", "true");
    this.rove(index);
    this.trigger("select", { channel: Number(tile.dataset.channel) });
  }
}

export function mount(element, props, trigger, watch) {
  const grid = new Grid(element, props, trigger);
  follow(props, watch, ["value"], () => { grid.show(); });
}
