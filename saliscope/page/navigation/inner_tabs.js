// Tabs inside a view: buttons that show one of its sections.
import { update } from "../store.js";
import { makeTabList, showOnly } from "../tabs.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, { tabs, label }) {
  const sections = tabs.map(([id]) => document.getElementById(`hl-lab-${id}`));
  const select = (chosen) => {
    list.mark(chosen);
    showOnly(sections, chosen);
    update({ labPart: chosen });
  };
  const items = tabs.map(([id, text]) => ({ id, text })),
    list = makeTabList({ class: "hl-inner-tabs", "aria-label": label }, items, select);
  element.firstElementChild.replaceChildren(list.root);
  select(tabs[0][0]);
}
