// The status line of a view: progress or an error; otherwise empty.
import { make } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const root = element.firstElementChild;
  const line = make("p", { class: "hl-line hl-quiet", role: "status" });
  const bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": props.terms.progress });
  root.replaceChildren(line, bar);
  return (given) => {
    const value = given || { parts: [] };
    line.replaceChildren(...value.parts.map((part) => make(part.mono ? "code" : "span", { text: part.text })));
    line.dataset.kind = value.kind || "";
    bar.hidden = value.fraction === undefined || value.fraction === null;
    if (!bar.hidden) bar.value = value.fraction;
  };
}
