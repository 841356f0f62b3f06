// Fields of the lab's forms; what a number cannot be is said at its field.
import { make } from "../wire.js";

const PAUSE = 600;                                      // ms after the last key: "-" and "1e" are on their way to a number
let ids = 0;

/** A control with its label above it and its refusal below it. */
export function field(text, control) {
  control.id = `hl-lab-field-${ids++}`;
  const wrong = make("p", { class: "hl-lab-wrong", id: `${control.id}-wrong`, "aria-live": "polite", hidden: true });
  return make("div", { class: "hl-field-row" }, make("label", { for: control.id, text }), control, wrong);
}

/** Say at the control what is wrong with it; "" when nothing is. */
export function say(control, sentence) {
  const wrong = document.getElementById(`${control.id}-wrong`) || control.parentElement.lastElementChild;
  wrong.textContent = sentence;
  wrong.hidden = !sentence;
  if (!sentence) {
    control.removeAttribute("aria-invalid");
    control.removeAttribute("aria-describedby");
    return;
  }
  control.setAttribute("aria-invalid", "true");
  control.setAttribute("aria-describedby", wrong.id);
}

/** The number in a control, null where it may be empty and is; undefined where it is none in the range. */
export function number(control, { min, max, whole, optional }) {
  if (control.value === "" && !control.validity.badInput) return optional ? null : undefined;
  const value = control.valueAsNumber;
  return value >= min && value <= max && (!whole || Number.isInteger(value)) ? value : undefined;
}

/** Call `act` when nothing has been typed for a moment. */
export function settled(act) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, PAUSE);
  };
}
