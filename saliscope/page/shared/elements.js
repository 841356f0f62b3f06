// Elements that several parts have: lists, ticks, labels, tables, facts, and boxes over maps.
import { make, setAttributes } from "../wire.js";

/** Return the options of a list: pairs of a value and a text. */
export const makeOptions = (pairs) => pairs.map(([value, text]) => make("option", { value, text }));

/** Create a list of pairs of a value and a text. */
export const makeSelect = (attributes, pairs) => make("select", attributes, ...makeOptions(pairs));

/** Create a label with a text in front of its control. */
export const makeLabel = (text, control, more = {}) => make("label", more, make("span", { text }), control);

/** Create a checkbox with its label. */
export function makeTick(text, attributes, more = {}) {
  const input = make("input", { type: "checkbox", ...attributes });
  return { input, root: make("label", { class: "hl-tick", ...more }, input, make("span", { text })) };
}

/** Create a form that calls `submit` instead of opening another page. */
export function makeForm(attributes, submit, ...children) {
  const onsubmit = (event) => {
    event.preventDefault();
    submit();
  };
  return make("form", { novalidate: true, onsubmit, ...attributes }, ...children);
}

/** Create a hidden field for files, which are given to `use`. */
export function makeFileInput(attributes, use) {
  const input = make("input", { type: "file", hidden: true, ...attributes });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = ""; // so that the same file can be chosen again
    if (files.length) use(files);
  });
  return input;
}

/** Show a text in an element, which is hidden without one. */
export function showText(element, text) {
  element.textContent = text;
  element.hidden = !text;
}

/**
 * Show that a field has a wrong value, with a message below it; "" means that it is right.
 * @param {Element} field
 * @param {HTMLElement} note the element of the message, which has an id
 * @param {string} message
 */
export function markInvalid(field, note, message) {
  showText(note, message);
  if (message) setAttributes(field, { "aria-invalid": "true", "aria-describedby": note.id });
  else for (const name of ["aria-invalid", "aria-describedby"]) field.removeAttribute(name);
}

/** Scroll a list, and not the page, to one of its items. */
export function reveal(list, item, margin = 0) {
  const box = list.getBoundingClientRect(),
    { left, right, top, bottom } = item.getBoundingClientRect();
  list.scrollLeft += Math.min(0, left - margin - box.left) || Math.max(0, right + margin - box.right);
  list.scrollTop += Math.min(0, top - box.top) || Math.max(0, bottom - box.bottom);
}

/** Create a row of a form: a control with its label, and a note below both. */
export function makeOption(title, control, note) {
  note.id = `${control.id}-note`;
  control.setAttribute("aria-describedby", note.id);
  return make("div", { class: "hl-option" }, make("label", { for: control.id, text: title }), control, note);
}

/** Create a row of a table from its name, a text or an element, and its cells. */
export function makeRow(name, cells, more = {}) {
  const head = typeof name === "string" ? make("th", { scope: "row", text: name }) : name;
  return make("tr", more, head, ...cells.map((cell) => (cell instanceof Element ? cell : make("td", { text: cell }))));
}

/** Create a table from the titles of its columns, as texts or with attributes, and its rows. */
export function makeTable(titles, rows, more = {}) {
  const head = (title) => make("th", { scope: "col", ...(typeof title === "string" ? { text: title } : title) });
  return make("table", more, make("thead", {}, make("tr", {}, ...titles.map(head))), make("tbody", {}, ...rows));
}

/** Return the rows of a list of facts: pairs of a name and a text. */
export const makeFacts = (pairs) => pairs.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]);

/** Return the style of a box [left, top, right, bottom], from 0 to 1, over an image. */
export function placeOf(box) {
  const [left, top, right, bottom] = box.map((part) => 100 * part);
  return `left:${left}%;top:${top}%;width:${right - left}%;height:${bottom - top}%`;
}

/** Return the style of the mark of a cell. */
export const placeOfCell = (row, column, { h, w }) => placeOf([column / w, row / h, (column + 1) / w, (row + 1) / h]);
