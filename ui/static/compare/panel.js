// One panel of the comparison: what it shows, chosen in its head, and its map.
import { field } from "../drawing/field.js";
import { Pick } from "../panel/pick.js";
import { Plate } from "./plate.js";
import { picture } from "../drawing/surface.js";
import { make } from "../wire.js";

const NAMES = ["method", "target", "layer", "model"];
const PAGE = "page", TOP = "top", RUNNER = "runner";       // choices that are no name; names are objects {name}
const SETTLED = ["done", "stopped", "refused", "halted"];

export class Panel {
  constructor(board, slot, from = null) {
    Object.assign(this, { board, slot, terms: board.terms, now: null, answer: null, pending: null, late: 0, old: false,
      said: { parts: [] } });
    this.own = { ...(from && from.own) };                  // names that are not the page's
    this.runner = Boolean(from && from.runner);            // the class after the top prediction
    this.classed = Boolean(from && from.classed);          // a method that reads no class gives way
    this.score = from ? from.score : undefined;            // the least score of a detection
    this.plate = new Plate((x, y) => board.point(x, y), this.terms.outside);
    this.letter = make("b", { class: "hl-compare-letter" });
    const button = (text, onclick) => make("button", { type: "button", class: "hl-button", text, onclick });
    this.copy = button(this.terms.duplicate, () => board.duplicate(this));
    this.drop = button(this.terms.remove, () => board.remove(this));
    this.again = button(this.terms.again, () => board.ask(this));
    this.again.hidden = true;
    this.lower = button("", () => this.choose("score", `=${this.now.remedy.score}`));
    this.lower.hidden = true;
    this.picks = Object.fromEntries(NAMES.map((name) =>
      [name, new Pick(this.terms[name], () => this.choices(name), (value) => this.choose(name, value))]));
    this.line = make("p", { class: "hl-line", role: "status" });
    this.bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": "Progress" });
    this.plate.frame.append(this.bar);
    this.element = make("section", { class: "hl-compare-panel" },
      make("header", {}, this.letter, make("span", { class: "hl-compare-buttons" }, this.copy, this.drop)),
      make("div", { class: "hl-compare-picks" }, ...NAMES.map((name) => this.picks[name].element)),
      ...this.plate.parts, make("div", { class: "hl-compare-line" }, this.line, this.lower, this.again));
    new ResizeObserver(() => {                             // room for what is read, so that nothing moves then
      const { clientWidth: wide } = this.element;
      this.element.toggleAttribute("data-narrow", wide < 300);
      this.element.toggleAttribute("data-medium", wide < 480);
    }).observe(this.element);
    this.head();
    this.plate.clear("");
    setTimeout(() => { if (!board.page.picture && !this.plate.map) this.plate.say(this.terms.empty); }, 1500);
  }

  /** "A" to "D", by its place. */
  call(letter) {
    this.letter.textContent = letter;
    this.element.setAttribute("aria-label", `Panel ${letter}`);
    for (const [button, text] of [[this.copy, this.terms.duplicate], [this.drop, this.terms.remove], [this.again, this.terms.again]]) {
      button.setAttribute("aria-label", `${text} ${letter}`);
    }
  }

  /** What can be chosen for `name`; the first follows the page. */
  choices(name) {
    const listed = (this.board.listed(this) || {})[name] || [];
    const found = name === "target" && this.now && this.now.found;
    const items = (found || listed).map(([label, value]) => ({ label, value: `=${value}` }));
    const fixed = [{ label: this.terms.page, value: PAGE }];
    if (name === "target") fixed.push({ label: this.top, value: TOP }, { label: this.terms.runner, value: RUNNER });
    return [...fixed, ...items];
  }

  get top() {
    const task = this.now && this.now.task;
    return task === "detection" ? this.terms.strongest : task === "segmentation" ? this.terms.largest : this.terms.top;
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
    if (name === "model") this.score = undefined;
    if (name === "model") for (const other of ["layer", "target", "method"]) if (this.foreign(other)) delete this.own[other];
    this.board.changed(this);
  }

  /** Whether a name of its own belongs to the model before. */
  foreign(name) {
    return name === "layer" || (name === "target" && Boolean(this.own.target));
  }

  /** The head: what is shown, or will be. */
  head() {
    const { shown = {}, takes_layer: layered = true, reads_class: classed = true, task = "", name = "" } = this.now || {};
    const { names } = this.board.page;
    this.picks.target.name(task === "detection" ? this.terms.object : task === "segmentation" ? this.terms.region : this.terms.target);
    for (const each of NAMES) {
      const own = each === "target" ? this.runner || this.own.target !== undefined : this.own[each] !== undefined;
      const off = !this.pending && ((each === "layer" && !layered) || (each === "target" && !classed));
      let text = shown[each] || names[each] || "";
      if (each === "target") text = name || (this.runner ? this.terms.runner : this.own.target || text || this.top);
      else if (this.pending && own) text = this.label(each);
      if (off) text = each === "layer" ? this.terms.no_layer : this.terms.no_class;
      const value = each === "target" && this.runner ? RUNNER : !own ? PAGE : each === "target" && !this.own.target ? TOP : `=${this.own[each]}`;
      this.picks[each].set(text, value, { own, off });
    }
  }

  /** A name of its own as the list has it. */
  label(name) {
    const { own } = this, item = ((this.board.listed(this) || {})[name] || []).find(([, value]) => value === own[name]);
    return (item ? item[0] : own[name]).split(" · ")[0];
  }

  /** Asked: the old map stays, dimmed. */
  wait(question, number) {
    this.pending = { question, number };
    this.shown = null;
    if (this.now) this.now = { ...this.now, name: "" };
    this.say([{ text: this.terms.computing }]);
    if (!this.plate.map) this.plate.say(this.terms.computing);
    this.again.hidden = this.lower.hidden = true;
    clearTimeout(this.late);
    this.late = setTimeout(() => {
      this.say([{ text: this.terms.late }]);
      this.again.hidden = false;
    }, 20000);
    this.head();
  }

  /** A step of its answer; true once it has all. */
  async take(value) {
    clearTimeout(this.late);
    this.shown = value;
    const { question } = this.pending, over = SETTLED.includes(value.state);
    this.now = { ...value, lists: null, view: null };
    if (over) [this.answer, this.pending] = [{ question, value }, null];
    this.laying = Boolean(value.view);
    this.say(value.parts, value.fraction, value.state);
    this.again.hidden = !["stopped", "halted", "refused"].includes(value.state);
    this.lower.hidden = value.state !== "refused" || !value.remedy;
    if (!this.lower.hidden) this.lower.textContent = value.remedy.label;
    this.head();
    if (value.view) await this.lay(value);
    else if (over) this.plate.clear(value.parts.map((part) => part.text).join(""));
    else if (!this.plate.map) this.plate.say(value.parts.map((part) => part.text).join(""));
    this.mark();
    return over;
  }

  async lay({ view, box }) {
    const turn = this.turn = (this.turn || 0) + 1, image = view.crop ? await picture(view.crop.src) : null;
    if (turn !== this.turn) return;                        // a newer map came while this picture was decoded
    this.laying = false;
    this.plate.lay({ ...field(view.map), box, id: view.id }, image, view.words.unit, view.words.alt, view.things, view);
  }

  say(parts, fraction = null, state = "") {
    this.said = { parts, fraction, state };
    this.mark();
  }

  /** Say what is shown, and whether it answers what is asked. */
  mark() {
    const { element, plate, pending, answer } = this, { parts, fraction, state } = this.said;
    const old = this.old && !pending && answer, said = !plate.map && !this.laying ? [] : old ? [{ text: this.terms.old }] : parts;
    const notes = (!old && !pending && this.now && this.now.notes) || [];
    this.line.replaceChildren(...said.map((part) => make(part.mono ? "code" : part.strong ? "strong" : "span", { text: part.text })),
      ...notes.map((text) => make("span", { text: ` ${text}` })));
    this.line.dataset.kind = state === "refused" && !old ? "error" : "";
    this.bar.hidden = fraction === null || fraction === undefined;
    if (!this.bar.hidden) this.bar.value = fraction;
    element.dataset.state = pending || this.laying ? "busy" : answer ? answer.value.state : "empty";
    element.dataset.old = String(Boolean(this.old || (pending && !(this.now && this.now.state === "partial"))));
    element.dataset.id = plate.map ? plate.map.id : "";
  }

  /** The answer that is there, after another was asked for. */
  back() {
    const { value } = this.answer;
    if (this.shown === value) return this.mark();
    this.pending = { question: this.answer.question };
    this.board.arrived(this, value);
  }

  /** Another picture has come to the page since this was asked. */
  pass() {
    this.pending = null;
    this.old = true;
    clearTimeout(this.late);
    this.say([{ text: this.terms.computing }]);
  }

  /** Without a picture. */
  empty() {
    this.answer = this.now = this.shown = null;
    clearTimeout(this.late);
    this.again.hidden = this.lower.hidden = true;
    this.plate.clear(this.board.page.picture === undefined ? "" : this.terms.empty);
    this.say([]);
    this.head();
  }

  /** Whether its map is not finished. */
  get partial() {
    return Boolean(this.pending && this.now && this.now.state === "partial");
  }

  end() {
    clearTimeout(this.late);
    for (const name of NAMES) this.picks[name].remove();
    this.element.remove();
  }
}
