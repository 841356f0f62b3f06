// The status line: what is being computed, or what the map shows; also marks the page as busy, which dims old maps.
import { subscribe } from "../store.js";
import { watchProps, make, markDrawn } from "../wire.js";

const NARROW = 768;
const DELAY = 300; // milliseconds before "Computing" is shown, because fast answers arrive earlier

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  const line = make("p", { class: "hl-line", role: "status", tabindex: -1 });
  const bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": props.terms.progress });
  root.replaceChildren(line, bar);
  let requested = false,
    timer = 0;
  const show = (value) => {
    line.replaceChildren(
      ...value.parts.map((part) => make(part.mono ? "code" : part.strong ? "strong" : "span", { text: part.text })),
    );
    line.dataset.kind = value.kind;
    bar.hidden = value.fraction === undefined || value.fraction === null;
    if (!bar.hidden) bar.value = value.fraction;
  };
  subscribe(["explained"], () => {
    requested = true;
  });
  watchProps(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value || { kind: "idle", parts: [] };
    clearTimeout(timer);
    if (value.patient) timer = setTimeout(() => show(value), DELAY);
    else show(value);
    document.documentElement.dataset.hlState = value.kind;
    markDrawn(element, value.id, since);
    if (requested && window.innerWidth < NARROW) {
      // stacked columns: the result is below the visible area
      element.scrollIntoView({ block: "start", behavior: "smooth" });
      line.focus({ preventScroll: true });
    }
    requested = false;
  });
}
