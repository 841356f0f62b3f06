// The list of a combobox, shown above the page: rows with columns, groups, and the note below them.
import { highlight } from "./search.js";
import { fill, make } from "../wire.js";

const SHOWN = 100, // rows that are drawn at once; scrolling draws more
  GAP = 8; // pixels between the list and the edge of the window

/** Return the visible part of the page in the coordinates of fixed elements; an on-screen keyboard reduces it. */
function visibleArea() {
  const { offsetLeft = 0, offsetTop = 0, width, height } = window.visualViewport || {};
  return {
    left: offsetLeft,
    top: offsetTop,
    width: width ?? window.innerWidth,
    bottom: offsetTop + (height ?? window.innerHeight),
  };
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
    Object.assign(this, { id, terms, heads, actions, items: [], typed: "", chosen: null, rows: [] });
    this.list = make("ul", { id, role: "listbox", class: "hl-combobox-list" });
    this.jumps = make("div", { class: "hl-combobox-jumps", role: "group", "aria-label": terms.jump, hidden: true });
    this.note = make("p", { class: "hl-combobox-note", hidden: true });
    this.element = make("div", { class: "hl-combobox-box", popover: "manual" }, this.jumps, this.list, this.note);
    this.element.addEventListener("mousedown", (event) => event.preventDefault()); // keep the focus in the field
    this.list.addEventListener("click", (event) => {
      const row = event.target.closest("[role=option][data-k]");
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
   * @param {{typed: string, chosen: ?string, note: string}} shown
   */
  draw(items, { typed, chosen, note = "" }) {
    Object.assign(this, { items, typed: typed.trim(), chosen, rows: [], group: null });
    const columns = Math.max(1, ...items.map((item) => item.columns?.length || 1)),
      hasLines = items.some(({ line, why }) => line || why);
    this.list.style.setProperty("--columns", columns);
    this.element.dataset.columns = columns;
    this.element.toggleAttribute("data-lines", hasLines);
    const head = make("li", { role: "presentation", class: "hl-combobox-head", "aria-hidden": "true" });
    head.append(...this.heads.map((text) => make("span", { class: "hl-combobox-cell", text })));
    this.end = make("li", { role: "option", "aria-disabled": "true" });
    this.list.replaceChildren(...(columns > 1 ? [head] : []), this.end);
    this.extend(Math.max(SHOWN, items.findIndex(({ value }) => value === chosen) + 20));
    this.drawJumps();
    this.note.hidden = !note;
    this.note.textContent = note;
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
      : fill(this.typed ? this.terms.no_match : this.terms.waiting, { text: this.typed.slice(0, 60) });
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
    const groups = [...this.list.querySelectorAll("[role=group]")];
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
        return make("button", { type: "button", tabindex: -1, text, onclick: () => jump(group) });
      }),
    );
  }

  get headHeight() {
    return this.list.querySelector(".hl-combobox-head")?.offsetHeight || 0;
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

  /**
   * Position the list below its field, or above it if there is more space, within the visible part of the page.
   * @param {DOMRect} field
   * @returns {number} the height that the list can have, 0 if the field is not completely visible
   */
  place(field) {
    const area = visibleArea(),
      below = area.bottom - field.bottom,
      above = field.top - area.top,
      isUp = below < 180 && above > below;
    const hasLines = this.element.hasAttribute("data-lines"),
      least = hasLines ? 640 : ({ 1: 240, 2: 320, 5: 560 }[this.element.dataset.columns] ?? 480),
      width = Math.min(Math.max(field.width, least), area.width - 2 * GAP),
      space = (isUp ? above : below) - GAP - 4;
    const right = area.left + area.width - width - GAP;
    Object.assign(this.element.style, {
      width: `${width}px`,
      left: `${Math.max(area.left + GAP, Math.min(field.left, right))}px`,
      maxHeight: `${Math.max(96, Math.min(hasLines ? 560 : 320, space))}px`,
      visibility: field.bottom < area.top || field.top > area.bottom ? "hidden" : "",
    });
    this.element.toggleAttribute("data-narrow", width < 440);
    this.element.style.top = `${isUp ? field.top - 2 - this.element.offsetHeight : field.bottom + 2}px`;
    return field.top >= area.top && field.bottom <= area.bottom ? space : 0;
  }

  close() {
    if (this.isOpen) this.element.hidePopover();
  }
}
