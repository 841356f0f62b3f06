// Example images as buttons; only the example's id is sent, never a path. On phones, the first button uploads an image,
// because the upload field is folded away with the settings.
import { changeToExample, explainFile } from "./image.js";
import { state, subscribe } from "../store.js";
import { makeFileInput, showText } from "../shared/elements.js";
import { make } from "../wire.js";

let items = [];

/** Explain the next example, or the previous one for a step of -1. */
export function stepExample(step) {
  const at = items.findIndex(({ id }) => id === state.example);
  changeToExample(items[at < 0 ? 0 : (at + step + items.length) % items.length]);
}

/** Create the thumbnail of an example: its square in the image of all. */
export const thumbnail = ({ src, at }, more = {}) =>
  make("img", { src: new URL(src, document.baseURI), style: `object-position: ${at} 0`, alt: "", ...more });

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const root = make("div", { class: "hl-thumbs" }),
    note = make("p", { class: "hl-quiet", hidden: true });
  element.firstElementChild.append(root, note);
  const { upload: text, accept } = props.terms,
    input = makeFileInput({ accept, "aria-label": text }, ([file]) => explainFile(file));
  root.append(make("button", { class: "hl-upload", text, onclick: () => input.click() }), input);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", props.terms.group);
  for (const item of props.items) {
    root.append(
      make(
        "button",
        { title: item.alt, "data-id": item.id, onclick: () => changeToExample(item) },
        thumbnail(item, { alt: item.alt }),
      ),
    );
  }
  const mark = () => {
    for (const button of root.querySelectorAll("[data-id]")) {
      button.setAttribute("aria-pressed", String(button.dataset.id === state.example));
    }
    showText(note, props.items.find((item) => item.id === state.example)?.note || "");
  };
  items = props.items;
  subscribe(["example"], mark);
  mark();
}
