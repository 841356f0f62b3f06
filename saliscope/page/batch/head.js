// The heading of the view of many images, and what it explains.
import { fill, make } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const text = make("p", { class: "hl-quiet" });
  element.firstElementChild.append(make("h2", { class: "hl-heading", text: props.title }), text);
  return (target) => {
    text.textContent = fill(props.text, { target });
  };
}
