// The status line: what is computed, or what the map is; it also marks the page as busy, so that old maps are dimmed.
import { follow, make, painted } from "../wire.js";

const NARROW = 768;
const PATIENCE = 300;                                  // milliseconds until "Computing" is said: quick answers come before

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  const line = make("p", { class: "hl-line", role: "status", tabindex: -1 });
  const bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": "Progress" });
  root.replaceChildren(line, bar);
  let asked = false, later = 0;
  const say = (value) => {
    line.replaceChildren(...value.parts.map((part) => make(part.mono ? "code" : part.strong ? "strong" : "span", { text: part.text })));
    line.dataset.kind = value.kind;
    bar.hidden = value.fraction === undefined || value.fraction === null;
    if (!bar.hidden) bar.value = value.fraction;
  };
  document.addEventListener("click", (event) => { if (event.target.closest?.("#hl-explain")) asked = true; });
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value || { kind: "idle", parts: [] };
    clearTimeout(later);
    if (value.patient) later = setTimeout(() => say(value), PATIENCE);
    else say(value);
    document.documentElement.dataset.hlState = value.kind;
    painted(element, value.id, since);
    if (asked && window.innerWidth < NARROW) {         // stacked columns: the result is below what the visitor sees
      element.scrollIntoView({ block: "start", behavior: "smooth" });
      line.focus({ preventScroll: true });
    }
    asked = false;
  });
}
