// The status line of a view: progress or an error; otherwise empty.
import { StatusLine } from "./status_line.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const status = new StatusLine(props.terms.progress, { class: "hl-line hl-quiet" });
  element.firstElementChild.replaceChildren(status.line, status.bar);
  return (value) => status.say(value?.kind || "", value?.parts || [], value?.fraction);
}
