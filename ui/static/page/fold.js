// On a phone the settings are one row, "German shepherd · head · Grad-CAM", which opens them; the result comes first.
import { follow, make } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const text = make("span", { text: props.words });
  const button = make("button", { type: "button", class: "hl-button", "aria-expanded": "false", "aria-controls": "hl-left" },
    text, make("i", { class: "hl-caret", "aria-hidden": "true" }));
  element.firstElementChild.append(button);
  const open = (on) => {
    button.setAttribute("aria-expanded", String(on));
    document.getElementById("hl-left")?.toggleAttribute("data-open", on);
  };
  button.addEventListener("click", () => open(button.getAttribute("aria-expanded") !== "true"));
  document.addEventListener("click", (event) => { if (event.target.closest?.("#hl-explain")) open(false); });
  follow(props, watch, ["value"], () => {
    if (props.value) text.textContent = props.value.text;
  });
}
