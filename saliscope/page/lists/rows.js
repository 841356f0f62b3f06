// The list of a combobox, shown above the page: rows with columns, groups, and the note below them.
import { highlight } from "./search.js";
import { showText } from "../shared/elements.js";
import { fill, make } from "../wire.js";

const SHOWN = 100, // rows that are drawn at once; scrolling draws more
  LEAST = 6, // rows that should be visible
  PADDING = 10, // pixels of the list and the border of the box
  GAP = 8; // pixels between the list and the edge of the window

/** Return the visible part of the page in the coordinates of fixed elements; an on-screen keyboard reduces it. */
function visibleArea() {
  const { offsetLeft: left, offsetTop: top, width, height } = window.visualViewport;
  return { left, top, width, bottom: top + height };
}

const marked = (text, typed) =>
  highlight(text, typed).map(([piece, isMatch]) => (isMatch ? make("mark", { text: piece }) : piece));

export class Rows {
  /**
   * @param {string} id
   * @param {Record<string, string>} terms
   * @param {string[]} heads titles of the columns, if there are several
   * @param {{take: (k: number) => void, mark: (k: number) => void}} actions for a row by its position
   */
  constructor(id, terms, heads, actions) {
    this.id = id;
    this.terms = terms;
    this.heads = heads;
    this.actions = actions;
    this.items = [];
    this.typed = "";
    this.chosen = null;
    this.isComplete = true;
    this.rows = [];
    this.list = make("ul", { id, role: "listbox", class: "hl-combobox-list" });
    this.jumps = make("div", { class: "hl-combobox-jumps", role: "group", "aria-label": terms.jump, hidden: true });
    this.note = make("p", { class: "hl-combobox-note", hidden: true });
    this.element = make("div", { class: "hl-combobox-box", popover: "manual" }, this.jumps, this.list, this.note);
    this.element.addEventListener("mousedown", (event) => event.preventDefault()); // keep the focus in the field
    this.list.addEventListener("click", (event) => {
      const { target } = event;
      const row = target instanceof Element && target.closest("[role=option][data-k]");
      if (row) actions.take(Number(row.dataset.k));
    });
    this.list.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.list;
      if (scrollTop + clientHeight > scrollHeight - clientHeight) this.extend(this.rows.length + SHOWN);
    });
  }

  get isOpen() {
    return this.element.matches(":popover-open");
  }

  /**
   * Draw the items that match the typed text.
   * @param {import("./search.js").Item[]} items
   * @param {{typed: string, chosen: ?string, note: string, isComplete: boolean}} shown
   */
  draw(items, { typed, chosen, note = "", isComplete = true }) {
    Object.assign(this, { items, typed: typed.trim(), chosen, isComplete, rows: [], group: null });
    const columns = Math.max(1, ...items.map((item) => item.columns?.length || 1)),
      hasLines = items.some(({ line, why }) => line || why);
    this.list.style.setProperty("--columns", String(columns));
    this.element.dataset.columns = String(columns);
    this.element.toggleAttribute("data-lines", hasLines);
    this.head = make("li", { role: "presentation", class: "hl-combobox-head", "aria-hidden": "true" });
    this.head.append(...this.heads.map((text) => make("span", { class: "hl-combobox-cell", text })));
    this.end = make("li", { role: "option", "aria-disabled": "true" });
    this.list.replaceChildren(...(columns > 1 ? [this.head] : []), this.end);
    this.extend(Math.max(SHOWN, items.findIndex(({ value }) => value === chosen) + 20));
    this.drawJumps();
    showText(this.note, note);
    if (!this.isOpen) this.element.showPopover();
  }

  /** Draw rows until there are `count`, or all. */
  extend(count) {
    const grouped = !this.typed && this.items.some(({ group }) => group);
    for (const item of this.items.slice(this.rows.length, count)) {
      const row = this.createRow(item, this.rows.length, grouped);
      this.rows.push(row);
      if (!grouped) this.end.before(row);
      else this.openGroup(item.group || "").append(row);
    }
    const more = this.items.length - this.rows.length;
    this.end.hidden = this.items.length > 0 && more <= 0;
    this.end.textContent = this.items.length
      ? fill(this.terms.more, { count: more.toLocaleString("en") })
      : fill(this.typed && this.isComplete ? this.terms.no_match : this.terms.waiting, {
          text: this.typed.slice(0, 60),
        });
  }

  /** Return the list of the group with this title, which is the last one or a new one. */
  openGroup(title) {
    if (this.group?.title !== title) {
      const rows = make("ul", { role: "presentation" }),
        element = make("li", { role: "group", class: "hl-combobox-group", "aria-label": title || null });
      element.append(make("span", { class: "hl-combobox-title", "aria-hidden": "true", text: title }), rows);
      this.end.before(element);
      this.group = { title, rows };
    }
    return this.group.rows;
  }

  createRow(item, k, isGrouped) {
    const { columns = [item.label], badges = [], group, why } = item,
      line = [isGrouped ? "" : group, why || item.line].filter(Boolean).join(" · ");
    // A space separates the cells for screen readers.
    const cells = columns.flatMap((text) => [
      make("span", { class: "hl-combobox-cell" }, ...marked(text, this.typed)),
      " ",
    ]);
    const attributes = {
      role: "option",
      id: `${this.id}-${k}`,
      "data-k": k,
      "data-value": item.value,
      "aria-selected": String(item.value === this.chosen),
      "aria-disabled": why ? "true" : null,
      "aria-description": badges.map(([, tip]) => tip).join(" ") || null,
    };
    if (!isGrouped) Object.assign(attributes, { "aria-setsize": this.items.length, "aria-posinset": k + 1 });
    const row = make("li", attributes, ...cells);
    if (line) row.append(make("span", { class: "hl-combobox-line", text: line }), " ");
    if (badges.length) {
      const texts = badges.map(([text, title]) => make("span", { text, title }));
      row.append(make("span", { class: "hl-combobox-badges" }, ...texts));
    }
    return row;
  }

  /** Draw buttons that scroll to each group, for mouse and touch. */
  drawJumps() {
    const groups = [...this.list.querySelectorAll("[role=group][aria-label]")]; // not those without a title
    this.jumps.hidden = groups.length < 2;
    const jump = (group) => {
      const row = group.querySelector("[role=option]");
      this.actions.mark(Number(row.dataset.k));
      const [box, { top }] = [this.list, group].map((element) => element.getBoundingClientRect());
      this.list.scrollTop += top - box.top - this.headHeight;
    };
    this.jumps.replaceChildren(
      ...groups.map((group) => {
        const text = group.getAttribute("aria-label");
        return make("button", { tabindex: -1, text, onclick: () => jump(group) });
      }),
    );
  }

  get headHeight() {
    return this.head?.offsetHeight || 0;
  }

  /** Mark a row, scroll to it, and return its id; no row for -1. */
  mark(k, isCentered = false) {
    this.list.querySelector("[data-at]")?.removeAttribute("data-at");
    if (k >= this.rows.length) this.extend(k + SHOWN);
    const row = this.rows[k];
    if (!row) return null;
    row.dataset.at = "";
    const box = this.list.getBoundingClientRect(),
      { top, bottom, height } = row.getBoundingClientRect(),
      title = row.closest("[role=group]")?.firstElementChild.offsetHeight || 0,
      first = box.top + this.headHeight + title;
    const isOutside = top < first || bottom > box.bottom;
    if (isCentered && isOutside) this.list.scrollTop += top - (first + box.bottom - height) / 2;
    else if (top < first) this.list.scrollTop -= first - top;
    else if (bottom > box.bottom) this.list.scrollTop += bottom - box.bottom;
    return row.id;
  }

  /** Return the height of the list with `LEAST` rows of mean height, or all if there are fewer. */
  get enough() {
    const { jumps, list, note } = this,
      title = list.querySelector(".hl-combobox-title")?.getBoundingClientRect().height || 0,
      rows = [...this.rows.slice(0, SHOWN), ...(this.end.hidden ? [] : [this.end])],
      [first, last] = [rows[0], rows.at(-1)].map((row) => row.getBoundingClientRect()),
      count = Math.min(rows.length, LEAST + 1); // one more, because two can be cut off
    const around = jumps.offsetHeight + note.offsetHeight + this.headHeight + title + PADDING;
    return around + (count * (last.bottom - first.top)) / rows.length;
  }

  /**
   * Position the list below its field if `LEAST` rows fit there, otherwise where there is more space, within the
   * visible part of the page. While the list is open, it stays on its side.
   * @param {DOMRect} field
   * @param {boolean} isOpening whether to choose the side
   * @returns {boolean} whether the rows fit and the field is completely visible
   */
  place(field, isOpening = false) {
    const area = visibleArea(),
      hasLines = this.element.hasAttribute("data-lines"),
      least = hasLines ? 640 : ({ 1: 240, 2: 320, 5: 560 }[this.element.dataset.columns] ?? 480),
      width = Math.min(Math.max(field.width, least), area.width - 2 * GAP),
      right = area.left + area.width - width - GAP;
    this.element.toggleAttribute("data-narrow", width < 440);
    this.element.style.width = `${width}px`; // rows are higher in a narrow list
    const { enough } = this,
      below = area.bottom - field.bottom - GAP - 4,
      above = field.top - area.top - GAP - 4;
    if (isOpening) this.isUp = below < enough && above > below;
    const space = this.isUp ? above : below;
    Object.assign(this.element.style, {
      left: `${Math.max(area.left + GAP, Math.min(field.left, right))}px`,
      maxHeight: `${Math.max(96, Math.min(Math.max(hasLines ? 560 : 320, enough), space))}px`,
      visibility: field.bottom < area.top || field.top > area.bottom ? "hidden" : "",
      top: `${this.isUp ? field.top - 2 : field.bottom + 2}px`,
      transform: this.isUp ? "translateY(-100%)" : "",
    });
    return space >= enough && field.top >= area.top && field.bottom <= area.bottom;
  }

  close() {
    if (this.isOpen) this.element.hidePopover();
  }
}
