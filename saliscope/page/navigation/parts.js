// The parts of one view: buttons that change between its tabs.
import { selectTab } from "../tabs.js";
import { make } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, { parts, shown }) {
  const buttons = parts.map(([id, text]) =>
    make("button", { text, "aria-pressed": String(id === shown), onclick: () => selectTab(id) }),
  );
  element.firstElementChild.append(make("div", { class: "hl-segments" }, ...buttons));
}
