// "What am I seeing?": a short text next to the map, collapsed on phones, and if the column is too short for it.
import { subscribe } from "../store.js";
import { explain } from "../text/terms.js";
import { drawText } from "../shared/status_line.js";
import { make } from "../wire.js";

const NARROW = "(max-width: 767px)";

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const text = make("p", {});
  explain(text);
  const box = make(
    "details",
    { class: "hl-guide-box", open: !window.matchMedia(NARROW).matches, hidden: true },
    make("summary", { text: props.title }),
    text,
  );
  element.firstElementChild.replaceChildren(box);
  const column = element.parentElement;
  let isOwn = false; // whether the user has opened or closed it
  box.firstElementChild.addEventListener("click", () => (isOwn = true));
  box.addEventListener("toggle", () => isOwn && box.open && box.scrollIntoView({ block: "nearest" }));
  /** Close it if the end of the column would be cut off. */
  const fit = () => {
    if (!isOwn && box.open && column.scrollHeight > column.clientHeight + 1) box.open = false;
  };
  addEventListener("resize", () => {
    if (isOwn) return;
    box.open = !window.matchMedia(NARROW).matches;
    fit();
  });
  subscribe(["drawn"], fit);
  return (value) => {
    box.hidden = !value || !value.parts;
    text.replaceChildren(...drawText(value?.parts || []));
    fit();
  };
}
