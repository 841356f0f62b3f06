// All channels of a layer as tiles: sorted, filtered and coloured here; arrows move, Enter opens, pointing shows the
// photograph below.
import "./address.js";
import { figure, figures, ordered } from "./order.js";
import { picture } from "../drawing/surface.js";
import { Tiles } from "../drawing/tiles.js";
import { toolbar } from "./tools.js";
import { asking, listen, old, open, update, walk } from "./walk.js";
import { follow, make, painted, save } from "../wire.js";

const NARROW = 768;                                     // px: the large channel is below the tiles
const tiles = new Tiles();                               // what was sent stays, if Gradio mounts the tab again
let sent = null;                                         // the sheet that the tiles are from

class Grid {
  constructor(element, props, trigger) {
    Object.assign(this, { element, props, trigger, terms: props.terms, at: 0, page: 0, nodes: new Map(), value: undefined, measuring: null, wants: null });
    this.list = make("div", { class: "hl-channels-grid", role: "listbox", "aria-label": this.terms.label });
    this.note = make("p", { class: "hl-quiet", "aria-live": "polite" });
    this.pager = make("div", { class: "hl-pager" });
    this.tools = toolbar(this.terms, { order: () => this.sort(), colour: () => this.colour(), png: () => this.png(),
      npy: () => trigger("upload", {}), stop: () => trigger("stop", {}) });
    element.firstElementChild.replaceChildren(this.tools.root, make("div", { class: "hl-channels-head" }, this.note, this.tools.legend), this.list, this.pager);
    this.listen();
    asking((number) => trigger("select", { channel: number }));
    listen(() => this.mark());
  }

  listen() {
    const tile = (event) => event.target.closest("[role=option]");
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("click", (event) => {
      if (!tile(event)) return;
      open(Number(tile(event).dataset.channel));
      if (window.innerWidth < NARROW) document.getElementById("hl-channels-pane")?.scrollIntoView({ behavior: "smooth" });
    });
    this.list.addEventListener("focusin", (event) => {
      this.rove([...this.list.children].indexOf(tile(event)));
      if (tile(event).matches(":focus-visible")) this.point(tile(event));
    });
    this.list.addEventListener("pointerover", (event) => this.point(tile(event)));
    this.list.addEventListener("pointerleave", () => this.point(null));
    this.list.addEventListener("focusout", () => this.point(null));
  }

  async show() {
    const since = performance.now(), value = this.props.value;
    if (value === this.value && value) return;
    this.value = value;
    if (value?.planes) await this.take(value);
    else if (value?.kind) this.measured(value);
    else if (value?.refused) this.refused();
    else if (value?.same) this.same(value);
    else if (value || !sent) this.clear(value);
    if (this.value !== value) return;
    this.draw();
    painted(this.element, value?.id, since);
  }

  /** New tiles: of other channels, or more of the same. */
  async take(value) {
    const image = await picture(value.crop.src);
    if (this.value !== value) return;
    this.image = image;
    if (!sent || sent.about !== value.about) {
      tiles.reset({ cell: value.cell, range: value.range, signed: value.range[0] < 0 });
      this.nodes.clear();
      this.page = 0;
    }
    const measures = sent && sent.about === value.about && sent.whom === value.whom ? sent.measures : {};
    sent = { ...value, measures, figures: figures(value), size: Math.max(value.numbers.length, sent?.about === value.about ? sent.size : 0) };
    tiles.add(value);
    update({ about: value.about, whom: value.whom, total: value.total, key: Math.max(walk.key, Number(value.key) || 0) });
    this.wants?.();
  }

  same(value) {
    if (sent && sent.whom !== value.whom) [sent.measures, sent.whom] = [{}, value.whom];
    update({ whom: value.whom, key: Math.max(walk.key, Number(value.key) || 0) });
  }

  measured(value) {
    this.measuring = null;
    if (sent && sent.about === value.about && sent.whom === value.whom) sent.measures[value.kind] = { note: value.note, values: figures({ found: value.values }).found };
  }

  refused() {
    this.tools.sort(this.measuring ? "mean" : undefined);
    this.measuring = null;
    [this.wants, this.page] = [null, this.shown ?? 0];
  }

  clear(value) {
    sent = null;
    update({ about: "", whom: "", total: 0, order: [], key: Math.max(walk.key, Number(value?.key) || 0) });
  }

  /** The figures that the tiles are sorted by; null while they are asked for. */
  measure() {
    const { sort } = this.tools.chosen;
    const measure = sent.measures[sort];
    if (measure) return measure.values;
    if (sort !== "gradient" && sort !== "effect") return sent.figures[sort] || sent.figures.mean;
    if (this.measuring !== sort && !old()) {
      this.measuring = sort;
      this.trigger("submit", { measure: sort });
    }
    return null;
  }

  sort() {
    this.page = 0;
    if (sent) this.draw();
  }

  draw() {
    this.tools.fit(sent, this.measuring);
    if (!sent) {
      this.list.replaceChildren();
      this.pager.replaceChildren();
      this.note.textContent = this.props.empty;
      return this.mark();
    }
    const values = this.measure(), { sort, hide } = this.tools.chosen;
    const shown = values || sent.figures.mean, kind = values ? sort : "mean";
    const order = ordered(sent.total, shown, kind, hide ? sent.dead : []);
    const pages = Math.max(1, Math.ceil(order.length / sent.size));
    this.page = Math.min(this.page, pages - 1);
    const listed = order.slice(this.page * sent.size, (this.page + 1) * sent.size), missing = listed.filter((number) => !tiles.has(number));
    update({ order });
    this.note.textContent = [sent.note, sent.measures[sort]?.note].filter(Boolean).join(" ");
    if (missing.length) return this.fetch(missing);
    this.shown = this.page;
    this.lay(listed, shown, kind);
    this.pages(pages);
    this.mark();
  }

  /** Ask for tiles; what is shown stays until they are there. */
  fetch(numbers) {
    this.list.dataset.old = "true";
    this.trigger("submit", { numbers, key: String(walk.key) });
  }

  lay(listed, values, kind) {
    const had = this.list.contains(document.activeElement), word = this.terms.measure[kind];
    const signed = values.some((v) => v < 0);
    this.list.style.setProperty("--ratio", this.image ? this.image.naturalWidth / this.image.naturalHeight : sent.grid[1] / sent.grid[0]);
    this.list.classList.toggle("hl-channels-smooth", this.tools.chosen.smooth);
    this.list.replaceChildren(...listed.map((number) => {
      const said = Number.isFinite(values[number]) ? figure(values[number]) : this.terms.no_value;
      let tile = this.nodes.get(number);
      if (!tile) this.nodes.set(number, tile = this.tile(number));
      tile.lastElementChild.textContent = Number.isFinite(values[number]) ? `${signed && values[number] > 0 ? "+" : ""}${said}` : "";
      tile.tabIndex = -1;
      tile.setAttribute("aria-label", `${this.terms.channel} ${number}, ${word} ${said}`);
      return tile;
    }));
    this.at = Math.max(0, listed.indexOf(walk.number));
    if (this.list.children[this.at]) this.list.children[this.at].tabIndex = 0;
    if (had) this.list.children[this.at]?.focus({ preventScroll: true });
  }

  tile(number) {
    const canvas = make("canvas", { width: tiles.w, height: tiles.h, class: "hl-channels-tile", "aria-hidden": "true" });
    tiles.draw(canvas, number, this.tools.chosen.shared);
    return make("button", { type: "button", role: "option", "data-channel": number }, canvas, make("b", { text: number }), make("span"));
  }

  /** Another range: all tiles again. */
  colour() {
    for (const [number, tile] of this.nodes) tiles.draw(tile.firstElementChild, number, this.tools.chosen.shared);
    if (sent) this.draw();
  }

  /** Show this tile over the photograph, and the former one alone. */
  point(tile) {
    if (tile === this.pointed) return;
    const { shared, smooth } = this.tools.chosen;
    if (this.pointed && tiles.has(Number(this.pointed.dataset.channel))) tiles.draw(this.pointed.firstElementChild, Number(this.pointed.dataset.channel), shared);
    this.pointed = tile;
    if (tile && this.image) tiles.over(tile.firstElementChild, Number(tile.dataset.channel), this.image, { shared, smooth });
  }

  mark() {
    this.list.dataset.old = String(old());
    for (const tile of this.list.children) {
      const chosen = Number(tile.dataset.channel) === walk.number;
      if (tile.getAttribute("aria-selected") !== String(chosen)) tile.setAttribute("aria-selected", String(chosen));
    }
    const chosen = this.list.querySelector("[aria-selected=true]");
    if (chosen && walk.number !== this.seen) chosen.scrollIntoView({ block: "nearest" });
    this.seen = walk.number;
  }

  pages(count) {
    const { terms } = this;
    const turn = (page, text) => make("button", { type: "button", class: "hl-button", text, disabled: page < 0 || page >= count,
      onclick: () => { this.page = page; this.draw(); this.list.scrollTop = 0; } });
    this.pager.replaceChildren(...(count < 2 ? [] : [turn(this.page - 1, terms.previous),
      make("span", { text: `${terms.page} ${this.page + 1} ${terms.of} ${count}` }), turn(this.page + 1, terms.next)]));
  }

  rove(index) {
    if (index < 0) return;
    const former = this.list.children[this.at];
    if (former) former.tabIndex = -1;
    this.at = index;
    this.list.children[index].tabIndex = 0;
  }

  key(event) {
    const count = this.list.children.length;
    const across = getComputedStyle(this.list).gridTemplateColumns.split(" ").length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, PageUp: -4 * across, PageDown: 4 * across }[event.key];
    const next = step ? Math.min(count - 1, Math.max(0, this.at + step)) : { Home: 0, End: count - 1 }[event.key];
    if (next === undefined || !count) return;
    event.preventDefault();
    this.rove(next);
    this.list.children[next].focus();
  }

  /** Every channel in the order that is shown; tiles that were not sent yet are fetched first. */
  async png() {
    if (!sent) return;
    const { order } = walk, { about } = sent;
    this.tools.busy(true);
    for (let missing; (missing = order.filter((number) => !tiles.has(number))).length && sent?.about === about;) {
      await new Promise((resolve) => { this.wants = resolve; this.fetch(missing.slice(0, sent.size)); setTimeout(resolve, 60000); });
    }
    this.wants = null;
    if (sent?.about === about && order.every((number) => tiles.has(number))) save(await tiles.sheet(order, sent.note, this.tools.chosen), `${sent.name}.png`);
    this.tools.busy(false);
    this.mark();
  }
}

export function mount(element, props, trigger, watch) {
  const grid = new Grid(element, props, trigger);
  follow(props, watch, ["value"], () => { grid.show(); });
}
