// The views of the page and the tabs inside a view: sections of which one is visible.
import { startVisible } from "./parts.js";
import { ENDS, itemOfKey, ROW } from "./shared/keys.js";
import { update } from "./store.js";
import { make } from "./wire.js";

const sections = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll("#hl-tabs > [data-tab]")]);

/** Return the ids of all views. */
export const tabs = () => sections().map((each) => each.dataset.tab);

/** Return the id of the selected view. */
export const selectedTab = () => sections().find((each) => !each.hidden)?.dataset.tab;

/**
 * Select a view; unknown ids are ignored.
 * @param {string} id
 */
export function selectTab(id) {
  if (!tabs().includes(id) || selectedTab() === id) return;
  showOnly(sections(), id);
  update({ view: id });
}

/**
 * Show one of several sections, and start its parts.
 * @param {HTMLElement[]} all
 * @param {string} id
 */
export function showOnly(all, id) {
  for (const each of all) each.hidden = each.dataset.tab !== id;
  startVisible();
}

/**
 * Create a list of tabs, in which arrow keys move the focus and select.
 * @param {Record<string, any>} attributes of the list
 * @param {{id: string, text: string, label?: string}[]} items
 * @param {(id: string) => void} select
 */
export function makeTabList(attributes, items, select) {
  const buttons = items.map(({ id, text, label }) =>
    make("button", { role: "tab", "data-view": id, text, "aria-label": label, onclick: () => select(id) }),
  );
  const onkeydown = (event) => {
    const next = itemOfKey(event, buttons, { ...ROW, ...ENDS }, true);
    if (!next) return;
    next.focus();
    select(next.dataset.view);
  };
  /** Mark the selected tab; if it is not among them, the first one can be focused. */
  const mark = (id) => {
    const isListed = items.some((item) => item.id === id);
    buttons.forEach((button, k) => {
      const isSelected = button.dataset.view === id;
      button.setAttribute("aria-selected", String(isSelected));
      button.tabIndex = isSelected || (!isListed && k === 0) ? 0 : -1;
    });
  };
  return { root: make("div", { role: "tablist", onkeydown, ...attributes }, ...buttons), mark };
}
