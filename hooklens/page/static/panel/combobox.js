// A combobox: a text field with a filtered list of names, shown above the page while it is open.
import { fill, make } from "../wire.js";

const SHOWN = 100; // names that are listed at once; typing finds the others
let ids = 0;

/**
 * Return the items whose label or name contains all typed words: exact match first, then those in which a word starts
 * with the text, then in list order. Names are those of torchvision, such as "resnet101" for "ResNet-101".
 * @param {{label: string, value: string}[]} items
 * @param {string} typed
 */
export function search(items, typed) {
  const text = typed.trim().toLowerCase(),
    parts = text.split(/\s+/).filter(Boolean);
  if (!parts.length) return items;
  const rank = ({ label, value }) => {
    const name = label.toLowerCase(),
      other = String(value).toLowerCase();
    if (!parts.every((part) => name.includes(part) || other.includes(part))) return -1;
    if (name.split(" · ")[0] === text || other === text) return 0;
    const words = name.split(/[^\p{L}\p{N}]+/u);
    return name.startsWith(text) || other.startsWith(text) || words.some((word) => word.startsWith(text)) ? 1 : 2;
  };
  return items
    .map((item, k) => [rank(item), k, item])
    .filter(([at]) => at >= 0)
    .sort((a, b) => a[0] - b[0] || a[1] - b[1])
    .map(([, , item]) => item);
}

/** Return a label as text and marks of its typed words. */
export function highlight(label, typed) {
  const parts = typed.toLowerCase().split(/\s+/).filter(Boolean),
    lower = label.toLowerCase();
  if (!parts.length || lower.length !== label.length) return [label]; // some letters change their length
  const isMarked = Array.from({ length: label.length }, () => false);
  for (const part of parts) {
    const at = lower.indexOf(part);
    if (at >= 0) isMarked.fill(true, at, at + part.length);
  }
  const pieces = [];
  for (let from = 0, to = 0; from < label.length; from = to) {
    while (to < label.length && isMarked[to] === isMarked[from]) to++;
    const text = label.slice(from, to);
    pieces.push(isMarked[from] ? make("mark", { text }) : text);
  }
  return pieces;
}

/** Return an item's columns, with marks of the typed words; spaces separate them for screen readers. */
function createColumns({ label, columns = [label] }, typed) {
  return columns.flatMap((text, k) => [k ? " " : "", make("span", {}, ...highlight(text, typed))]);
}

/** @typedef {{label: string, value: string, columns?: string[]}} Item what the list shows in columns, or the label */

export class Combobox {
  /**
   * @param {{no_match: string, more: string}} terms
   * @param {string} label
   * @param {() => Item[]} items
   * @param {(value: string) => void} pick called with the selected value
   * @param {string[]} heads titles of the columns, if there are several
   */
  constructor(terms, label, items, pick, heads = []) {
    Object.assign(this, { terms, items, pick, heads, found: [], at: -1, chosen: null, text: "" });
    const id = `hl-combobox-list-${ids++}`;
    this.word = make("span", { class: "hl-combobox-label", id: `${id}-word`, text: label, "aria-hidden": "true" });
    this.field = make("input", {
      type: "text",
      role: "combobox",
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": label,
      "aria-autocomplete": "list",
      "aria-expanded": "false",
      "aria-controls": id,
    });
    this.list = make("ul", { id, role: "listbox", class: "hl-combobox-list", popover: "manual", "aria-label": label });
    this.element = make("div", { class: "hl-combobox" }, this.word, this.field, this.list);
    this.field.addEventListener("click", () => {
      this.open("");
      // After a click on selected text, the browser sets the cursor only now, and typing would extend the old name.
      setTimeout(() => this.shown && this.field.value === this.text && this.field.select());
    });
    this.field.addEventListener("focus", () => this.field.select()); // typing replaces the name
    this.word.addEventListener("click", () => this.field.focus());
    this.field.addEventListener("input", () => this.open(this.field.value));
    this.field.addEventListener("blur", () => this.close());
    this.field.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("mousedown", (event) => event.preventDefault()); // keep the focus in the field
    this.ended = new AbortController();
    const { signal } = this.ended;
    const move = () => {
      if (this.shown) this.place();
    };
    window.addEventListener("scroll", move, { capture: true, passive: true, signal });
    window.addEventListener("resize", move, { signal });
  }

  get shown() {
    return this.field.getAttribute("aria-expanded") === "true";
  }

  /** Show a name; `own` if the user has selected it, `off` if it is not used. */
  set(text, value, { own = false, off = false } = {}) {
    Object.assign(this, { text, chosen: value });
    this.field.disabled = off;
    this.field.title = text;
    this.element.dataset.own = String(own);
    if (!this.shown) this.field.value = text;
  }

  /** Change the label; `spoken` is its longer form for screen readers, which contains the label. */
  name(label, spoken = label) {
    this.word.textContent = label;
    for (const each of [this.field, this.list]) each.setAttribute("aria-label", spoken);
  }

  open(typed) {
    if (this.field.disabled) return;
    if (!this.shown && !typed) this.field.select();
    const all = search(this.items(), typed);
    this.found = all.slice(0, SHOWN);
    const more = all.length - this.found.length,
      note = (text) => make("li", { role: "option", "aria-disabled": "true", text });
    const wide = Math.max(1, ...this.found.map(({ columns }) => columns?.length || 1));
    this.list.style.setProperty("--columns", wide);
    this.list.dataset.columns = wide;
    const head = make("li", { role: "presentation", class: "hl-combobox-head", "aria-hidden": "true" });
    head.append(...this.heads.map((text) => make("span", { text })));
    this.list.replaceChildren(
      ...(wide > 1 ? [head] : []),
      ...this.found.map((item, k) =>
        make(
          "li",
          {
            role: "option",
            id: `${this.list.id}-${k}`,
            "aria-selected": String(item.value === this.chosen),
            onclick: () => this.take(k),
          },
          ...createColumns(item, typed),
        ),
      ),
      ...(all.length ? [] : [note(fill(this.terms.no_match, { text: typed.trim().slice(0, 60) }))]),
      ...(more > 0 ? [note(fill(this.terms.more, { count: more.toLocaleString("en") }))] : []),
    );
    this.field.setAttribute("aria-expanded", "true");
    if (!this.list.matches(":popover-open")) this.list.showPopover();
    this.place();
    this.mark(typed.trim() && all.length ? 0 : this.found.findIndex((item) => item.value === this.chosen));
  }

  /** Position the list below the field, or above it if there is more space; close it if the field is out of view. */
  place() {
    const field = this.element.getBoundingClientRect(),
      below = window.innerHeight - field.bottom;
    if (field.bottom < 0 || field.top > window.innerHeight) return this.close();
    const up = below < 180 && field.top > below;
    const least = { 1: 240, 2: 320 }[this.list.dataset.columns] ?? 480,
      width = Math.min(Math.max(field.width, least), window.innerWidth - 16);
    this.list.style.width = `${width}px`;
    this.list.style.left = `${Math.max(8, Math.min(field.left, window.innerWidth - width - 8))}px`;
    this.list.style.maxHeight = `${Math.min(320, (up ? field.top : below) - 12)}px`;
    this.list.style.top = up ? "auto" : `${field.bottom + 2}px`;
    this.list.style.bottom = up ? `${window.innerHeight - field.top + 2}px` : "auto";
  }

  mark(at) {
    this.list.querySelector("[data-at]")?.removeAttribute("data-at");
    this.at = at;
    const item = at >= 0 ? this.list.querySelector(`#${CSS.escape(`${this.list.id}-${at}`)}`) : null;
    if (!item) return this.field.removeAttribute("aria-activedescendant");
    item.dataset.at = "";
    this.field.setAttribute("aria-activedescendant", item.id);
    const { offsetTop: top, offsetHeight: high } = item,
      { scrollTop, clientHeight } = this.list;
    if (top < scrollTop || top + high > scrollTop + clientHeight) this.list.scrollTop = top - clientHeight / 2;
  }

  close() {
    if (!this.shown) return;
    this.field.setAttribute("aria-expanded", "false");
    this.field.removeAttribute("aria-activedescendant");
    if (this.list.matches(":popover-open")) this.list.hidePopover();
    this.field.value = this.text;
    if (document.activeElement === this.field) this.field.select();
  }

  take(k) {
    const item = this.found[k];
    this.close();
    if (item && item.value !== this.chosen) this.pick(item.value);
  }

  key(event) {
    const { key } = event,
      last = this.found.length - 1;
    if (key === "Tab") return this.close(); // otherwise the next control would be the list, which scrolls
    if (key === "Escape" && this.shown) this.close();
    else if (key === "Enter" && this.shown) this.take(this.at);
    else if ((key === "ArrowDown" || key === "ArrowUp") && !this.shown) this.open("");
    else if (key === "ArrowDown") this.mark(this.at >= last ? 0 : this.at + 1);
    else if (key === "ArrowUp") this.mark(this.at <= 0 ? last : this.at - 1);
    else if (this.shown && (key === "PageDown" || key === "PageUp"))
      this.mark(Math.min(last, Math.max(0, this.at + (key === "PageDown" ? 8 : -8))));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  remove() {
    this.close();
    this.ended.abort();
  }
}
