// Form fields of the gradient lab, with validation messages.
import { markInvalid } from "../shared/elements.js";
import { make } from "../wire.js";

const PAUSE = 600; // ms after the last key press: "-" and "1e" are incomplete numbers
let ids = 0;

/**
 * Create a control with a label above it and a validation message below it.
 * @param {string} text
 * @param {HTMLElement} control
 * @returns {HTMLElement}
 */
export function field(text, control) {
  control.id = `hl-lab-field-${ids++}`;
  const note = make("p", { class: "hl-lab-wrong", id: `${control.id}-wrong`, "aria-live": "polite", hidden: true });
  return make("div", { class: "hl-field-row" }, make("label", { for: control.id, text }), control, note);
}

/**
 * Show a validation message at the control; "" removes it.
 * @param {HTMLElement} control
 * @param {string} message
 */
export function showMessage(control, message) {
  markInvalid(control, /** @type {HTMLElement} */ (control.parentElement.lastElementChild), message);
}

/**
 * Return the number in a control; null if it is empty and optional, undefined if it is invalid.
 * @param {HTMLInputElement} control
 * @param {{min: number, max: number, whole?: boolean, optional?: boolean}} range
 * @returns {number | null | undefined}
 */
export function readNumber(control, { min, max, whole, optional }) {
  if (control.value === "" && !control.validity.badInput) return optional ? null : undefined;
  const value = control.valueAsNumber;
  return value >= min && value <= max && (!whole || Number.isInteger(value)) ? value : undefined;
}

/**
 * Return a function that calls `act` once typing has paused.
 * @param {() => void} act
 * @returns {() => void}
 */
export function debounce(act) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, PAUSE);
  };
}

/**
 * Create buttons that fill the form with an item, and a function that marks one of them as pressed.
 * @param {string} label
 * @param {{id: string, title: string}[]} items
 * @param {(item: any) => void} choose
 */
export function makeChips(label, items, choose) {
  const buttons = items.map((item) =>
    make("button", { "aria-pressed": "false", "data-id": item.id, text: item.title, onclick: () => choose(item) }),
  );
  const mark = (id) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.id === id));
  };
  return { root: make("div", { class: "hl-lab-chips", role: "group", "aria-label": label }, ...buttons), mark };
}
