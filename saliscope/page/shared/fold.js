// On a phone, the settings collapse into one row, "German shepherd · head · Grad-CAM"; the result comes first.
import { subscribe } from "../store.js";
import { makeCaret } from "./dismiss.js";
import { make } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const text = make("span", { text: props.words });
  const attributes = { class: "hl-button", "aria-expanded": "false", "aria-controls": "hl-left" },
    button = make("button", attributes, text, makeCaret());
  element.firstElementChild.append(button);
  const open = (on) => {
    button.setAttribute("aria-expanded", String(on));
    document.getElementById("hl-left")?.toggleAttribute("data-open", on);
  };
  button.addEventListener("click", () => open(button.getAttribute("aria-expanded") !== "true"));
  subscribe(["explained"], () => open(false));
  return (value) => {
    if (value) text.textContent = value.text;
  };
}
