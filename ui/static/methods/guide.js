// "What am I seeing?": the words beside the map; folded on a phone until a visitor opens it.
import { follow, make, painted } from "../wire.js";

const NARROW = "(max-width: 767px)";

export function mount(element, props, trigger, watch) {
  const text = make("p", {});
  const box = make("details", { class: "hl-guide-box", open: !window.matchMedia(NARROW).matches, hidden: true },
    make("summary", { text: props.title }), text);
  element.firstElementChild.replaceChildren(box);
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value;
    box.hidden = !value || !value.parts;
    text.replaceChildren(...((value && value.parts) || []).map((part) =>
      make(part.mono ? "code" : part.strong ? "strong" : "span", { text: part.text })));
    painted(element, value && value.id, since);
  });
}
