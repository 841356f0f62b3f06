// Dims what belongs to the former question in the moment in which a new one is asked, and each part until it shows its
// own new value. After an error, or without an image, nothing new comes, and what is said about the old map is hidden.
// What the page says about its map is also dim while the map of another layer is shown. The results of the other views
// dim by an attribute of the page until the question is known, and then by one of their view (page.css).
import { newestMessage } from "../parts.js";
import { state, subscribe, update } from "../store.js";

const SAID = ["hl-bars", "hl-guide", "hl-findings", "hl-trust"],
  DRAWN = ["hl-overlay", "hl-planes", "hl-strip"]; // these stay, dimmed
const parts = (ids) => ids.map((id) => document.getElementById(id)).filter(Boolean);

/** Show that a part belongs to the current question. */
export function markCurrent(...ids) {
  for (const part of parts(ids)) delete part.dataset.outdated;
}

/** Show that all parts belong to the current question, because the former one is still that of the page. */
export const markAllCurrent = () => markCurrent(...SAID, ...DRAWN);

/** Check whether a part shows the answer to a former question. */
export const isOutdated = (id) => Boolean(document.getElementById(id)?.dataset.outdated);

/** Follow the questions of the page and the parts that were drawn. */
export function markOutdated() {
  let newest = 0; // the last message before the question: what a part draws later has a larger number
  subscribe(["asked"], () => {
    newest = newestMessage();
    for (const part of parts([...SAID, ...DRAWN])) part.dataset.outdated = "dim";
  });
  subscribe(["drawn"], () => markCurrent(...[...SAID, ...DRAWN].filter((id) => state.drawn[id] > newest)));
  subscribe(["phase"], () => {
    // Stopped before the question was known: the former one is still that of the page.
    if (state.waiting && ["done", "stopped"].includes(state.phase)) update({ waiting: false });
    if (!["error", "idle"].includes(state.phase)) return;
    for (const part of parts(SAID).filter((each) => each.dataset.outdated)) part.dataset.outdated = "gone";
  });
  subscribe(["waiting"], () => document.documentElement.toggleAttribute("data-hl-waiting", state.waiting));
  subscribe(["preview"], () => document.documentElement.toggleAttribute("data-hl-preview", Boolean(state.preview)));
}
