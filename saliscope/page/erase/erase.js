// The erase view: an edit with undo and redo, the image to paint on, and the answer about the edited image.
import { bindEdit } from "./address.js";
import { parseEdit, textOf } from "./edit.js";
import { Painter } from "./painter.js";
import { Predictions } from "./predictions.js";
import { Saving } from "./saving.js";
import { decodeShape } from "./strokes.js";
import { Tools } from "./tools.js";
import { unpackMap } from "../drawing/field.js";
import { loadImage } from "../drawing/surface.js";
import { MapView } from "../compare/map_view.js";
import { state, subscribe, update } from "../store.js";
import { Component, markDrawn, mountClass } from "../parts.js";
import { StatusLine } from "../shared/status_line.js";
import { fill, make, makeButton } from "../wire.js";

const MOST_ANSWERS = 20; // that are kept for undo and redo
const keyOf = ({ text, second }) => JSON.stringify([text, second?.example || second?.file || ""]);

class Board extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    const terms = (this.terms = { ...props.map, ...props.terms });
    this.history = [{ text: "", second: null }];
    this.at = 0;
    this.base = "";
    this.answers = new Map();
    this.pending = null;
    this.shown = null;
    this.isStale = true; // the settings of the page have changed since the last request
    this.isForeign = true; // and since the shown answer
    Object.assign(this, { drawn: 0, listed: 0 }); // the last requests with a map, and with predictions
    this.number = Date.now(); // larger than the numbers of an earlier board: the server ignores smaller ones
    this.tools = new Tools(this);
    const point = (x, y = null) => this.point(x, y);
    this.before = new MapView(point, terms);
    this.after = new MapView(point, terms);
    this.after.isOld = () => this.drawn !== this.shown?.value.number;
    this.painter = new Painter(terms, () => this.tools.brush, { commit: (token) => this.add(token), point });
    this.predictions = new Predictions(terms);
    this.saving = new Saving(this);
    this.build();
    this.bound = bindEdit(this, props.longest);
    this.follow();
    subscribe(["waiting"], () => this.mark());
    subscribe(["question"], () => this.outdate());
    subscribe(["imagePath"], () => this.outdate());
    subscribe(["erasing"], () => this.take());
    document.addEventListener("keydown", (event) => this.key(event));
    new IntersectionObserver(() => this.refreshIfVisible()).observe(element);
    this.take();
  }

  build() {
    const { terms } = this,
      { stage } = this.before;
    // the painter lies over the map, whose own pointer and keys would otherwise act as well
    this.before.canvas.tabIndex = -1;
    this.before.canvas.removeAttribute("role");
    this.before.canvas.setAttribute("aria-hidden", "true");
    stage.append(this.painter.root);
    this.status = new StatusLine(terms.computing);
    this.stop = makeButton(terms.stop, () => this.trigger("stop", {}), { hidden: true });
    this.again = makeButton(terms.again, () => this.request(), { hidden: true });
    this.note = make("p", { class: "hl-quiet hl-erase-note" });
    this.size = make("p", { class: "hl-quiet", text: terms.before_hint });
    const view = (name, map, ...more) =>
      make(
        "section",
        { class: "hl-erase-view", "aria-label": terms[name] },
        make("h2", { class: "hl-title", text: terms[name] }),
        ...map.parts,
        ...more,
      );
    this.tools.root.lastElementChild.append(this.saving.menu.root);
    this.root.replaceChildren(
      this.tools.root,
      make("div", { class: "hl-erase-status" }, this.status.line, this.stop, this.again, this.status.bar),
      make(
        "div",
        { class: "hl-erase-views" },
        view("before", this.before, this.size),
        view("after", this.after),
        this.predictions.root,
      ),
      this.note,
    );
    for (const map of [this.before, this.after]) map.clear(terms.start);
  }

  // The edit and its history

  get current() {
    return this.history[this.at];
  }

  /** Add an operation to the region. */
  add(token) {
    const edit = parseEdit(this.current.text);
    this.push(textOf({ ...edit, fill: this.tools.fill.value, region: [...edit.region, token] }));
  }

  /** Replace the fill, or the changes of the whole image. */
  change(values) {
    const edit = { ...parseEdit(this.current.text), ...values };
    if (!("fill" in values)) edit.fill = this.tools.fill.value;
    const text = textOf(edit);
    if (text !== this.current.text) this.push(text);
    else this.tools.showSecond(edit.fill, this.current.second); // nothing to fill yet
  }

  push(text, second = this.current.second) {
    this.append(text, second);
    this.changed();
  }

  append(text, second) {
    this.history = [...this.history.slice(0, this.at + 1), { text, second }];
    this.at += 1;
  }

  travel(step) {
    if (!this.history[this.at + step]) return;
    this.at += step;
    this.changed();
  }

  /** Replace the edit by that of an address. */
  restore(text, second) {
    this.append(text, second);
    this.follow();
    this.outdate();
  }

  /** Take the edit with which another view opens this one. */
  take() {
    const { erasing } = state;
    if (!erasing) return;
    update({ erasing: "" });
    if (erasing !== this.current.text) this.push(erasing);
  }

  changed() {
    this.follow();
    this.request();
  }

  /** Show the current edit in the controls and the address. */
  follow() {
    const { text, second } = this.current,
      edit = parseEdit(text);
    if (!edit.region.length) edit.fill = this.tools.fill.value; // of the next region
    const most = this.props.longest,
      count = text.length;
    this.tools.follow(edit, second, { back: this.at > 0, forward: this.at + 1 < this.history.length, isEmpty: !text });
    const own = second?.file && text.includes("fill.image") ? this.terms.link_without_image : "";
    this.note.textContent = count > most ? fill(this.terms.too_long, { count, most }) : own;
    this.bound?.();
  }

  key(event) {
    if (event.key.toLowerCase() !== "z" || !(event.ctrlKey || event.metaKey) || event.altKey) return;
    if (!this.element.checkVisibility() || event.target.matches?.("input:not([type=range]), textarea")) return;
    event.preventDefault();
    this.travel(event.shiftKey ? 1 : -1);
  }

  // Requests and answers

  /** The settings of the page have changed: ask again when the view is visible. */
  outdate() {
    this.isStale = this.isForeign = true;
    this.answers.clear(); // they are about the former settings
    this.mark();
    this.refreshIfVisible();
  }

  refreshIfVisible() {
    if (this.isStale && (state.question || state.imagePath === "") && this.element.checkVisibility()) this.request();
  }

  request(search = "") {
    if (!this.element.checkVisibility()) return void (this.isStale = true);
    if (state.imagePath === "") return this.showNothing(this.terms.no_image);
    const key = keyOf(this.current),
      known = search || this.isStale ? null : this.answers.get(key);
    if (known) {
      if (this.pending) this.trigger("stop", {});
      this.pending = null;
      return this.draw(known);
    }
    const { text, second } = this.current;
    this.pending = { number: ++this.number, key, search };
    this.isStale = false;
    this.status.say("busy", this.terms.computing);
    this.mark();
    const sent = second?.example ? { example: second.example } : second?.file ? { file: second.file } : null;
    const uses = text.includes("fill.image") || this.tools.fill.value === "image";
    const fills = search && !text.includes("fill.") ? `fill.${this.tools.fill.value}` : text;
    const more = { search, held: this.base, second: uses ? sent : null };
    this.trigger("submit", { number: this.number, edit: fills, ...more });
  }

  receive(value) {
    this.handle(value);
    return false; // `draw` marks it
  }

  /** Handle an answer to the last request. */
  async handle(value) {
    if (!value || value.number !== this.pending?.number || value === this.received) return;
    this.received = value;
    if (value.state === "waiting") return this.status.say("busy", value.text, value.fraction);
    if (value.state === "refused") {
      this.pending = null;
      this.status.say("error", value.text);
      return this.mark();
    }
    await this.complete(value);
    if (value.number !== this.pending?.number) return;
    const { search, key } = this.pending;
    if (value.state === "done") {
      this.pending = null;
      if (search) {
        this.append(value.edit, this.current.second);
        this.follow();
      }
      this.keep(search ? keyOf(this.current) : key, value);
    }
    this.draw(value);
  }

  /** Load the images of an answer, and the map before the edit, which is sent once. */
  async complete(value) {
    if (value.before) {
      this.answers.clear();
      this.base = value.key;
      const image = await loadImage(value.before.crop.src);
      this.setMap(this.before, value.before, image);
    }
    if (value.after) value.image = await loadImage(value.after.crop.src);
  }

  setMap(view, answer, image) {
    view.setMap({ ...unpackMap(answer.map), id: answer.id }, image, answer, null);
  }

  keep(key, value) {
    this.answers.set(key, value);
    for (const old of [...this.answers.keys()].slice(0, -MOST_ANSWERS)) this.answers.delete(old);
  }

  // Drawing, without a request

  draw(value) {
    const since = performance.now();
    this.isForeign = false;
    const headline = value.headline || (value.number === this.shown?.value.number ? this.shown.headline : null);
    this.shown = { value, headline, key: keyOf(this.current) };
    if (value.after) this.drawn = value.number;
    if (value.rows) this.listed = value.number;
    this.shownSecond = this.current.second;
    if (value.after) {
      this.setMap(this.after, value.after, value.image);
    } else if (value.state !== "partial") this.after.clear(this.terms.start);
    if (value.rows) this.predictions.show(value.rows);
    this.paintMaps();
    this.painter.show(value.mask || null);
    this.size.textContent = value.mask?.text || this.terms.before_hint;
    this.status.say(value.state === "partial" ? "busy" : "done", value.text, value.fraction);
    this.mark();
    markDrawn(this.element, value.id, since);
  }

  /** Draw both maps with the same colors and one range. */
  paintMaps() {
    const views = [this.before, this.after].filter(({ map }) => map),
      maps = views.map(({ map }) => map);
    const styleOf = (map) => ({
      colors: maps.some(({ lo, by_size }) => lo < 0 && !by_size) ? "signed" : "magma",
      limits: null,
      smooth: true,
      signed: !map.by_size,
    });
    for (const view of views) {
      const limits = view.limitsAmong(views, styleOf);
      view.draw({ ...styleOf(view.map), limits });
      view.rangeNote.textContent = limits ? this.terms.same_range : "";
    }
    this.mix();
  }

  get opacity() {
    const { opacity } = this.tools;
    opacity.setAttribute("aria-valuetext", fill(this.terms.percent, { percent: opacity.value }));
    return opacity.valueAsNumber / 100;
  }

  mix() {
    for (const view of [this.before, this.after]) view.mix(this.opacity);
  }

  point(x, y = null) {
    for (const view of [this.before, this.after]) view.point(x, y);
  }

  showNothing(text) {
    if (this.pending) this.trigger("stop", {});
    Object.assign(this, { pending: null, base: "", shown: null, isStale: true });
    this.answers.clear();
    for (const map of [this.before, this.after]) map.clear(text);
    this.predictions.show([]);
    this.painter.show(null);
    this.status.say("idle", "");
    this.mark();
  }

  /** Mark the shown answer as old if it is not that of the current edit, and show new strokes over its region. */
  mark() {
    const { waiting } = state,
      isOther = waiting || this.isStale || this.pending || this.shown?.key !== keyOf(this.current);
    const isOld = Boolean(this.shown && isOther);
    const isRefused = isOld && !this.pending && this.status.kind === "error";
    const isNew = (number) => !isOld || (!waiting && number === this.pending?.number);
    this.root.dataset.old = String(isOld);
    /** @type {[Element, boolean][]} */
    const old = [
      [this.before.frame, !waiting && !this.isForeign && this.shown?.value.key === this.base],
      [this.after.frame, isNew(this.drawn)],
      [this.predictions.table, isNew(this.listed)],
    ];
    for (const [part, isCurrent] of old) part.closest("section").dataset.old = String(!isCurrent);
    if (isRefused) this.size.textContent = this.terms.old;
    this.stop.hidden = !this.pending;
    this.again.hidden = this.status.kind !== "error";
    for (const goal of ["keep", "half", "change"])
      this.tools[goal].disabled = Boolean(this.pending?.search) || !this.before.map;
    const headline = this.isForeign ? null : this.shown?.headline;
    update({ edited: headline ? { headline, isOld: isOld && !isNew(this.listed) } : null });
    this.saving.menu.button.disabled = isOld || !this.after.map;
    const before = parseEdit(this.shown ? JSON.parse(this.shown.key)[0] : "").region,
      now = parseEdit(this.current.text).region;
    const isContinued = before.every((token, k) => token === now[k]);
    const added = isContinued ? now.slice(before.length).map(decodeShape).filter(Boolean) : [];
    if (this.before.map) this.painter.show(this.painter.mask, added);
  }
}

export const mount = mountClass(Board);
