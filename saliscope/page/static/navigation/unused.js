// Grays out the image and the settings in the views that do not use them: the parts of the lab except "Image".
import { watchTabs } from "../gradio.js";

const LAB = '[data-tab-id=lab][aria-selected="true"]',
  IMAGE = '#hl-lab [data-tab-id=image][aria-selected="true"]';

/** Follow the selected view. */
export function markUnused() {
  const follow = () => {
    const unused = Boolean(document.querySelector(`#hl-tabs ${LAB}`) && !document.querySelector(IMAGE));
    document.documentElement.toggleAttribute("data-hl-unused", unused);
    for (const part of document.querySelectorAll("#hl-left > :not(#hl-unused)")) part.inert = unused;
  };
  watchTabs(() => {
    follow();
    // also the tabs inside the lab
    const all = document.getElementById("hl-tabs");
    new MutationObserver(follow).observe(all, { subtree: true, attributeFilter: ["aria-selected"] });
  }, follow);
}
