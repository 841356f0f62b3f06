// A tab's own status line: progress or an error; empty otherwise.
import { follow, make, painted } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  const line = make("p", { class: "hl-line hl-quiet", role: "status" });
  const bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": "Progress" });
  root.replaceChildren(line, bar);
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value || { parts: [] };
    line.replaceChildren(...value.parts.map((part) => make(part.mono ? "code" : "span", { text: part.text })));
    line.dataset.kind = value.kind || "";
    bar.hidden = value.fraction === undefined || value.fraction === null;
    if (!bar.hidden) bar.value = value.fraction;
    painted(element, value.id, since);
  });
}
