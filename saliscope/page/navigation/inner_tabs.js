// Tabs inside a view: buttons that show one of its sections.
import { bindParameters } from "../shared/address.js";
import { state, subscribe, update } from "../store.js";
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
  const [[first]] = tabs;
  select(first);
  const changed = bindParameters(
    ["lab"],
    () => ({ lab: state.labPart === first ? "" : state.labPart }),
    ({ lab }) => select(tabs.some(([id]) => id === lab) ? lab : first),
  );
  subscribe(["labPart"], changed);
}
