// One panel of the comparison: its settings in the header, and its map.
import { unpackMap } from "../drawing/field.js";
import { likelyFirst, toItem } from "../lists/choice.js";
import { Combobox } from "../lists/combobox.js";
import { MapView } from "./map_view.js";
import { loadImage } from "../drawing/surface.js";
import { StatusLine } from "../shared/status_line.js";
import { fill, make, makeButton, makeSymbolButton, setAttributes } from "../wire.js";

const NAMES = ["method", "target", "layer", "model"];
const PAGE = "page",
  TOP = "top",
  RUNNER = "runner"; // special choices; names are prefixed with "="
const FINAL = ["done", "stopped", "refused", "halted"];

export class Panel {
  constructor(board, slot, from = null) {
    this.board = board;
    this.slot = slot;
    this.terms = board.terms;
    this.latest = null;
    this.answer = null;
    this.pending = null;
    this.timer = 0;
    this.old = false;
    this.status = { parts: [] };
    this.own = { ...(from && from.own) }; // settings that differ from the page
    this.runner = Boolean(from && from.runner); // show the class after the top prediction
    this.classed = Boolean(from && from.classed); // may replace a class-agnostic method
    this.score = from ? from.score : undefined; // minimum score of a detection
    this.mapView = new MapView((x, y) => board.point(x, y), this.terms);
    this.mapView.isOld = () => this.isOld;
    this.turn = 0;
    this.letter = make("b", { class: "hl-compare-letter" });
    const hidden = { hidden: true },
      lowerScore = () => this.choose("score", `=${this.latest.remedy.score}`);
    this.copyButton = makeSymbolButton("+", () => board.add(this, true));
    this.removeButton = makeSymbolButton("×", () => board.remove(this));
    this.retryButton = makeButton(this.terms.again, () => board.sendRequest(this), hidden);
    this.lowerScoreButton = makeButton("", lowerScore, hidden);
    this.picks = Object.fromEntries(
      NAMES.map((name) => [
        name,
        new Combobox(
          this.terms.list,
          this.terms[name],
          () => this.choices(name),
          (value) => this.choose(name, value),
          {
            heads: this.terms.heads[name],
            note: () => (name === "method" && this.board.requests.listed(this).note) || "",
          },
        ),
      ]),
    );
    this.statusLine = new StatusLine(this.terms.progress);
    this.mapView.frame.append(this.statusLine.bar);
    this.element = this.arrange();
    this.head();
    this.mapView.clear("");
    setTimeout(() => {
      if (!board.page.image && !this.mapView.map) this.mapView.showMessage(this.terms.empty);
    }, 1500);
  }

  arrange() {
    const buttons = make("span", { class: "hl-compare-buttons" }, this.copyButton, this.removeButton);
    return make(
      "section",
      { class: "hl-compare-panel" },
      make(
        "header",
        {},
        this.letter,
        make("div", { class: "hl-compare-picks" }, ...NAMES.map((name) => this.picks[name].element)),
        buttons,
      ),
      ...this.mapView.parts,
      make("div", { class: "hl-compare-line" }, this.statusLine.line, this.lowerScoreButton, this.retryButton),
    );
  }

  /** Set the letter "A" to "D" by position. */
  setLetter(letter) {
    this.letter.textContent = letter;
    this.element.setAttribute("aria-label", fill(this.terms.panel, { letter }));
    this.head();
    const { duplicate, remove, again } = this.terms,
      name = (button, text) => setAttributes(button, { "aria-label": `${text} ${letter}`, title: text });
    name(this.copyButton, duplicate);
    name(this.removeButton, remove);
    name(this.retryButton, again);
  }

  /** Return the choices for `name`; the first one follows the page. */
  choices(name) {
    const listed = this.board.requests.listed(this)[name] || [];
    const found = name === "target" && this.latest && this.latest.found;
    const items = (found || listed).map(toItem).map((item) => ({ ...item, value: `=${item.value}` }));
    const fixed = [{ label: this.terms.page, value: PAGE }];
    if (name === "target") fixed.push({ label: this.top, value: TOP }, { label: this.second, value: RUNNER });
    return name === "target" && !found ? likelyFirst([...fixed, ...items], "=") : [...fixed, ...items];
  }

  /** What a panel shares a color range by: model, method and layer. */
  get kind() {
    const { names = {}, takes_layer: layered = true } = this.latest || {};
    return JSON.stringify([names.model, names.method, layered ? names.layer : ""]);
  }

  /** Say at the color bar which panels have the same range; `mates` includes this panel, or is empty. */
  sayRange(mates) {
    const { terms } = this.board,
      panels = mates.map(({ letter }) => letter.textContent).join(", ");
    this.mapView.rangeNote.textContent = panels ? fill(terms.same_range, { panels }) : terms.own_range;
  }

  get top() {
    const { first, strongest, largest, top } = this.terms;
    return { text: first, detection: strongest, segmentation: largest }[this.latest?.task] ?? top;
  }

  get second() {
    return this.latest?.task === "text" ? this.terms.second : this.terms.runner;
  }

  choose(name, value) {
    if (name === "score") {
      this.score = Number(value.slice(1));
      return this.board.changed(this);
    }
    if (name === "target") this.runner = value === RUNNER;
    if (value === PAGE || value === RUNNER) delete this.own[name];
    else this.own[name] = value === TOP ? "" : value.slice(1);
    if (name === "method") this.classed = false;
    if (name === "model") {
      this.score = undefined;
      delete this.own.layer;
      if (this.own.target) delete this.own.target;
    }
    this.board.changed(this);
  }

  /** Update the header with the current or pending settings. */
  head() {
    const {
      shown = {},
      takes_layer: layered = true,
      reads_class: classed = true,
      task = "",
      name = "",
    } = this.latest || {};
    const { names } = this.board.page;
    for (const each of NAMES) {
      const label = (each === "target" && this.terms.kinds[task]) || this.terms[each];
      this.picks[each].name(label, fill(this.terms.of_panel, { name: label, letter: this.letter.textContent }));
      const value = this.valueOf(each),
        own = value !== PAGE;
      const off = !this.pending && ((each === "layer" && !layered) || (each === "target" && !classed));
      let text = shown[each] || names[each] || "";
      if (each === "target") text = name || (this.runner ? this.second : this.own.target || text || this.top);
      else if (this.pending && own) text = this.label(each);
      if (off) text = each === "layer" ? this.terms.no_layer : this.terms.no_class;
      this.picks[each].set(text, value, { own, off });
    }
  }

  /** Return the value of a setting in the list of choices. */
  valueOf(name) {
    if (name === "target" && this.runner) return RUNNER;
    const own = this.own[name];
    return own === undefined ? PAGE : own ? `=${own}` : TOP;
  }

  /** Return the label of a setting from the list of choices. */
  label(name) {
    const { own } = this,
      item = (this.board.requests.listed(this)[name] || []).find(([, value]) => value === own[name]);
    return (item ? item[0] : own[name]).split(" · ")[0];
  }

  /** Show that a request is pending: the old map stays, dimmed. */
  wait(request, number) {
    this.pending = { request, number };
    this.turn += 1;
    this.shown = null;
    if (this.latest) this.latest = { ...this.latest, name: "" };
    this.showMessage([{ text: this.terms.computing }]);
    if (!this.mapView.map) this.mapView.showMessage(this.terms.computing);
    this.retryButton.hidden = this.lowerScoreButton.hidden = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.showMessage([{ text: this.terms.late }]);
      this.retryButton.hidden = false;
    }, 20000);
    this.head();
  }

  /** Handle a partial or final answer. Its settings and its map are shown together. */
  async take(value) {
    clearTimeout(this.timer);
    const { request } = this.pending,
      { view } = value,
      over = FINAL.includes(value.state),
      turn = view || over ? ++this.turn : this.turn;
    if (over) this.pending = { request }; // no more messages
    const image = view?.crop ? await loadImage(view.crop.src) : null;
    if (turn !== this.turn) return; // there is a newer answer or request
    this.shown = value;
    this.latest = { ...value, lists: null, view: null };
    if (over) [this.answer, this.pending] = [{ request, value }, null];
    if (view) this.mapView.setMap({ ...unpackMap(view.map), box: view.crop?.window, id: view.id }, image, view);
    this.showMessage(value.parts, value.fraction, value.state);
    this.retryButton.hidden = !["stopped", "halted", "refused"].includes(value.state);
    this.lowerScoreButton.hidden = value.state !== "refused" || !value.remedy;
    if (!this.lowerScoreButton.hidden) this.lowerScoreButton.textContent = value.remedy.label;
    this.head();
    if (!view && over) this.mapView.clear(value.parts.map((part) => part.text).join(""));
    else if (!view && !this.mapView.map) this.mapView.showMessage(value.parts.map((part) => part.text).join(""));
    this.mark();
  }

  showMessage(parts, fraction = null, state = "") {
    this.status = { parts, fraction, state };
    this.mark();
  }

  /** Show the status, and whether the map matches the current settings. */
  mark() {
    const { element, mapView, pending, answer } = this,
      { parts, fraction, state } = this.status;
    const old = this.old && !pending && answer,
      status = !mapView.map ? [] : old ? [{ text: this.terms.old }] : parts;
    const notes = (!old && !pending && this.latest && this.latest.notes) || [];
    const text = [...status, ...notes.map((note) => ({ text: ` ${note}` }))];
    this.statusLine.say(state === "refused" && !old ? "error" : "", text, fraction);
    element.dataset.state = pending ? "busy" : answer ? answer.value.state : "empty";
    element.dataset.old = String(this.isOld);
    element.dataset.id = mapView.map ? mapView.map.id : "";
  }

  /** Show the existing answer again, after another one was requested. */
  back() {
    const { value } = this.answer;
    if (this.shown === value && !this.pending) return this.mark();
    this.pending = { request: this.answer.request };
    this.board.handleAnswer(this, value);
  }

  /** The page's image has changed since this was requested. */
  markStale() {
    this.pending = null;
    this.turn += 1;
    this.old = true;
    clearTimeout(this.timer);
    this.showMessage([{ text: this.terms.computing }]);
  }

  /** Show the panel without an image. */
  empty() {
    this.answer = this.latest = this.shown = null;
    this.turn += 1;
    clearTimeout(this.timer);
    this.retryButton.hidden = this.lowerScoreButton.hidden = true;
    this.mapView.clear(this.board.page.image === undefined ? "" : this.terms.empty);
    this.showMessage([]);
    this.head();
  }

  /** Whether its map is incomplete. */
  get partial() {
    return Boolean(this.pending && this.shown?.state === "partial");
  }

  /** Whether its map belongs to former settings. */
  get isOld() {
    return Boolean(this.old || (this.pending && !this.partial));
  }

  end() {
    clearTimeout(this.timer);
    for (const name of NAMES) this.picks[name].remove();
    this.element.remove();
  }
}
