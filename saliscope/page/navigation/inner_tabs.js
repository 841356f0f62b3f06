// Tabs inside a view: buttons that show one of its sections.
import { update } from "../store.js";
import { moveByKeys, showOnly } from "../tabs.js";
import { make } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, { tabs, label }) {
  const sections = tabs.map(([id]) => document.getElementById(`hl-lab-${id}`));
  const select = (chosen) => {
    for (const button of buttons) {
      button.setAttribute("aria-selected", String(button.dataset.view === chosen));
      button.tabIndex = button.dataset.view === chosen ? 0 : -1;
    }
    showOnly(sections, chosen);
    update({ labPart: chosen });
  };
  const buttons = tabs.map(([id, text]) =>
    make("button", { role: "tab", "data-view": id, text, onclick: () => select(id) }),
  );
  const list = make("div", { class: "hl-inner-tabs", role: "tablist", "aria-label": label }, ...buttons);
  list.addEventListener("keydown", moveByKeys(buttons, select));
  element.firstElementChild.replaceChildren(list);
  select(tabs[0][0]);
}
