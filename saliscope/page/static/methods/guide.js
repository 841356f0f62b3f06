// "What am I seeing?": a short text next to the map, collapsed on phones.
import { explain } from "../text/terms.js";
import { watchProps, make, markDrawn } from "../wire.js";

const NARROW = "(max-width: 767px)";

export function mount(element, props, trigger, watch) {
  const text = make("p", {});
  explain(text);
  const box = make(
    "details",
    { class: "hl-guide-box", open: !window.matchMedia(NARROW).matches, hidden: true },
    make("summary", { text: props.title }),
    text,
  );
  element.firstElementChild.replaceChildren(box);
  watchProps(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value;
    box.hidden = !value || !value.parts;
    text.replaceChildren(
      ...((value && value.parts) || []).map((part) =>
        make(part.mono ? "code" : part.strong ? "strong" : "span", { text: part.text }),
      ),
    );
    markDrawn(element, value && value.id, since);
  });
}
