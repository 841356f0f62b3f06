// Grays out the image and the settings in the views that do not use them: the parts of the lab except "Image".
import { state, subscribe } from "../store.js";

/** Follow the selected view. */
export function markUnused() {
  subscribe(["view", "labPart"], () => {
    const unused = state.view === "lab" && state.labPart !== "image";
    document.documentElement.toggleAttribute("data-hl-unused", unused);
    for (const part of document.querySelectorAll("#hl-left > :not(#hl-unused)")) part.toggleAttribute("inert", unused);
  });
}
