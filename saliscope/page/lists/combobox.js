// A combobox: a text field that filters a list of names. All lists of models, layers, classes and methods are of this
// kind. Keys, as in the pattern of the ARIA guide: arrows, Page Up and Down, Home and End mark a row, Enter selects it,
// Escape closes the list, and every other key is typed.
import { Rows } from "./rows.js";
import { search } from "./search.js";
import { showText } from "../shared/elements.js";
import { explain } from "../text/terms.js";
import { fill, make } from "../wire.js";

const PAGE = 8; // rows of Page Up and Page Down
let ids = 0;

export class Combobox {
  /**
   * @param {Record<string, any>} terms
   * @param {string} label
   * @param {() => import("./search.js").Item[]} items
   * @param {(value: string) => void} pick called with the selected value
   * @param {{heads?: string[], note?: () => string, isComplete?: () => boolean}} more titles of the columns; a text
   *   below the list; whether the items have arrived: what is typed before is selected from them when they have
   */
  constructor(terms, label, items, pick, { heads = [], note = () => "", isComplete = () => true } = {}) {
    this.terms = terms;
    this.items = items;
    this.pick = pick;
    this.note = note;
    this.found = [];
    this.at = -1;
    this.chosen = null;
    this.text = "";
    this.isComplete = isComplete;
    this.kept = "";
    const id = `hl-combobox-list-${ids++}`;
    this.word = make("span", { class: "hl-combobox-label", id: `${id}-word`, text: label });
    this.aside = make("span", { class: "hl-combobox-aside", id: `${id}-aside`, hidden: true });
    this.count = make("span", { class: "hl-combobox-count", role: "status" });
    this.field = make("input", {
      type: "text",
      role: "combobox",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      "aria-autocomplete": "list",
      "aria-expanded": "false",
      "aria-controls": id,
    });
    const actions = { take: (k) => this.take(k), mark: (k) => this.mark(k) };
    this.rows = new Rows(id, terms, heads, actions);
    this.row = make("div", { class: "hl-combobox-field" }, this.field, this.aside);
    const parts = [this.word, this.row, this.count, this.rows.element];
    this.element = make("div", { class: "hl-combobox" }, ...parts);
    this.name(label);
    this.listen();
    explain(this.word);
  }

  listen() {
    this.row.addEventListener("mousedown", (event) => {
      if (event.target !== this.field) event.preventDefault(); // the arrow is part of the field
    });
    // After a click on selected text, the browser would set the cursor, and typing would extend the old name.
    this.field.addEventListener("mouseup", (event) => this.shown || event.preventDefault());
    this.row.addEventListener("click", () => {
      if (this.shown) return;
      this.field.focus();
      this.open(this.kept);
    });
    this.field.addEventListener("focus", () => this.field.select()); // typing replaces the name
    this.word.addEventListener("click", ({ target }) => target === this.word && this.field.focus());
    this.field.addEventListener("input", () => this.open(this.field.value));
    this.field.addEventListener("blur", () => this.close());
    this.field.addEventListener("keydown", (event) => this.key(event));
    this.ended = new AbortController();
    const { signal } = this.ended,
      place = () => this.shown && this.place();
    window.addEventListener("scroll", place, { capture: true, passive: true, signal });
    window.addEventListener("resize", place, { signal });
    window.visualViewport.addEventListener("scroll", place, { signal });
    window.visualViewport.addEventListener("resize", () => this.shown && this.makeRoom(), { signal });
  }

  get shown() {
    return this.field.getAttribute("aria-expanded") === "true";
  }

  /**
   * Show a name; `own` if the user has selected it, `off` if it cannot be changed, `why` if the map does not depend on
   * it; `aside` is shown at the right.
   */
  set(text, value, { own = false, off = false, why = "", aside = "" } = {}) {
    Object.assign(this, { text, chosen: value });
    this.field.disabled = off;
    this.field.title = why || text;
    this.element.dataset.own = String(own);
    this.element.toggleAttribute("data-unused", Boolean(why));
    showText(this.aside, aside);
    if (aside) this.field.setAttribute("aria-describedby", this.aside.id);
    else this.field.removeAttribute("aria-describedby");
    if (!this.shown) this.field.value = this.kept || text;
  }

  /** Change the label; `spoken` is its longer form for screen readers, which contains the label. */
  name(label, spoken = label) {
    this.word.textContent = label;
    for (const each of [this.field, this.rows.list]) each.setAttribute("aria-label", spoken);
  }

  open(typed) {
    if (this.field.disabled) return;
    const wasShown = this.shown;
    if (!wasShown && !typed) this.field.select();
    this.draw(typed);
    this.field.setAttribute("aria-expanded", "true");
    this.kept = "";
    if (wasShown) this.place();
    else this.makeRoom();
    this.markFirst();
  }

  /** Mark the best match, or the selected item if nothing is typed. */
  markFirst() {
    const isSearch = Boolean(this.typed.trim() && this.found.length);
    this.mark(isSearch ? 0 : this.found.findIndex(({ value }) => value === this.chosen), true);
  }

  draw(typed) {
    this.found = search(this.items(), typed);
    this.typed = typed;
    this.rows.draw(this.found, { typed, chosen: this.chosen, note: this.note(), isComplete: this.isComplete() });
    const count = this.found.filter(({ why }) => !why).length;
    this.count.textContent = typed.trim() ? fill(this.terms.found[Number(count !== 1)], { count }) : "";
  }

  /** Draw the list again after its items have changed, and keep the marked row. */
  refresh() {
    if (this.kept && this.isComplete()) return void setTimeout(() => this.takeKept()); // after the whole message
    if (!this.shown) return;
    const value = this.found[this.at]?.value;
    this.draw(this.typed);
    this.place(true);
    if (value === undefined) this.markFirst();
    else this.mark(this.found.findIndex((item) => item.value === value));
  }

  /** Select what was typed before there were items. */
  takeKept() {
    const item = search(this.items(), this.kept).find(({ why }) => !why);
    this.kept = "";
    this.field.value = this.text;
    if (item && item.value !== this.chosen) this.pick(item.value);
  }

  place(isOpening = false) {
    return this.rows.place(this.element.getBoundingClientRect(), isOpening);
  }

  /** Choose the side of the list; on a small screen, such as above an on-screen keyboard, first scroll to the field. */
  makeRoom() {
    if (this.place(true)) return;
    this.element.scrollIntoView({ block: "start" });
    this.place(true);
  }

  mark(at, isCentered = false) {
    this.at = at;
    const id = this.rows.mark(at, isCentered);
    if (id) this.field.setAttribute("aria-activedescendant", id);
    else this.field.removeAttribute("aria-activedescendant");
  }

  close(isCancelled = false) {
    if (!this.shown) return;
    this.kept = isCancelled || this.isComplete() ? "" : this.typed.trim();
    this.field.setAttribute("aria-expanded", "false");
    this.field.removeAttribute("aria-activedescendant");
    this.rows.close();
    this.count.textContent = "";
    this.field.value = this.kept || this.text;
    if (document.activeElement === this.field) this.field.select();
    this.field.scrollLeft = 0; // typing has scrolled to the end, and a name is read from its start
  }

  take(k) {
    const item = this.found[k];
    if (!item && !this.isComplete()) return this.close();
    if (!item || item.why) return;
    this.close(true);
    if (item.value !== this.chosen) this.pick(item.value);
  }

  key(event) {
    const { key } = event,
      last = this.found.length - 1,
      isHeld = event.shiftKey || event.ctrlKey || event.metaKey;
    if (key === "Tab") return this.close(); // otherwise the next control would be the list, which scrolls
    if (!this.shown) {
      if (isHeld || !["ArrowDown", "ArrowUp", "Enter"].includes(key)) return;
      this.open("");
    } else if (key === "Escape" || (key === "ArrowUp" && event.altKey)) this.close(true);
    else if (key === "Enter") this.take(this.at);
    else {
      const page = (step) => Math.min(last, Math.max(0, this.at + step));
      const next = {
        ArrowDown: this.at >= last ? 0 : this.at + 1,
        ArrowUp: this.at <= 0 ? last : this.at - 1,
        PageDown: page(PAGE),
        PageUp: page(-PAGE),
        Home: Math.min(0, last),
        End: last,
      }[key];
      if (next === undefined || isHeld) return;
      this.mark(next);
    }
    event.preventDefault();
    event.stopPropagation();
  }

  remove() {
    this.close();
    this.ended.abort();
  }
}
