// The views of the page and the tabs inside a view: sections of which one is visible.
import { startVisible } from "./parts.js";
import { update } from "./store.js";

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

/** Move the focus in a list of tabs with the arrow keys, and select the focused tab. */
export function moveByKeys(buttons, select) {
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  return (event) => {
    const at = buttons.indexOf(event.target),
      ends = { Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || (ends === undefined && !steps[event.key])) return;
    event.preventDefault();
    const next = buttons[ends ?? (at + steps[event.key] + buttons.length) % buttons.length];
    next.focus();
    select(next.dataset.view);
  };
}
