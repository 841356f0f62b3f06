// Dims what the pane next to the map says about the last request as soon as a new one starts, until each part shows the
// new answer, and hides it if there is no answer: after an error, or without an image. What the page says about its map
// is also dim while the map of another layer is shown.
import { state, subscribe } from "../store.js";

const PARTS = ["hl-bars", "hl-guide", "hl-findings", "hl-trust"];
const parts = () => PARTS.map((id) => document.getElementById(id)).filter(Boolean);

/** Follow the state of the page and the parts that were drawn. */
export function markOutdated() {
  const root = document.documentElement;
  let before = root.dataset.hlState || "idle",
    drawn = state.drawn;
  const follow = () => {
    const now = root.dataset.hlState;
    if (now === before) return;
    for (const part of parts()) {
      // Without an image there is no old answer, and the first predictions may be drawn before this state.
      if (now === "busy" && before === "idle" && part.id !== "hl-trust") delete part.dataset.outdated;
      else if (now === "busy") part.dataset.outdated = "dim";
      else if (["done", "stopped", "landing"].includes(now)) delete part.dataset.outdated;
      else if (before !== "busy" || part.dataset.outdated) part.dataset.outdated = "gone";
    }
    before = now;
  };
  new MutationObserver(follow).observe(root, { attributeFilter: ["data-hl-state"] });
  subscribe(["preview"], () => root.toggleAttribute("data-hl-preview", Boolean(state.preview)));
  subscribe(["drawn"], () => {
    // The checks of the last map are drawn again while the next one is computed.
    const isNew = ({ id }) => id !== "hl-trust" && state.drawn[id] !== drawn[id];
    for (const part of parts().filter(isNew)) delete part.dataset.outdated;
    drawn = state.drawn;
  });
}
