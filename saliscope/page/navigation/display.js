// How the page is displayed: light or dark, what is gray, and the presentation mode, with large text and without the
// settings.
import { bindParameters } from "../shared/address.js";
import { stepExample } from "../panel/examples.js";
import { state, subscribe } from "../store.js";
import { makeButton } from "../wire.js";

const PARAMETER = "__theme"; // Gradio reads it when the page opens

/** Change between light and dark; the address keeps the choice. */
export function toggleTheme() {
  const dark = document.body.classList.toggle("dark"),
    url = new URL(location.href);
  url.searchParams.set(PARAMETER, dark ? "dark" : "light");
  history.replaceState(null, "", url);
}

/** Gray out the image and the settings in the views that do not use them: the parts of the lab except "Image". */
export function markUnused() {
  subscribe(["view", "labPart"], () => {
    const unused = state.view === "lab" && state.labPart !== "image";
    document.documentElement.toggleAttribute("data-hl-unused", unused);
    const parts = "#hl-left > :not(#hl-unused, #hl-actions), #hl-explain, #hl-stop"; // the link has the view
    for (const part of document.querySelectorAll(parts)) part.toggleAttribute("inert", unused);
  });
}

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
const TAKES_ARROWS =
  "input, select, textarea, canvas, [role=slider], [role=tablist], [role=menu], .hl-rail, .hl-things";

/** The presentation mode, which the Escape key and a button leave. Left and right show the other examples. */
export class Presentation {
  constructor(text, focusHome) {
    this.focusHome = focusHome; // focuses the button that opens the mode
    this.button = makeButton(text, () => this.set(false), { id: "hl-leave", hidden: true });
    document.body.append(this.button);
    addEventListener("keydown", (event) => {
      if (!this.on || event.defaultPrevented) return;
      if (event.key === "Escape") this.set(false);
      const { target } = event,
        takesArrows = target instanceof Element && target.closest(TAKES_ARROWS);
      const isFree = !takesArrows && !event.ctrlKey && !event.metaKey && !event.altKey;
      if (STEPS[event.key] && isFree) stepExample(STEPS[event.key]);
    });
    this.changed = bindParameters(
      ["present"],
      () => ({ present: this.on ? "1" : "" }),
      ({ present }) => this.show(present === "1"),
    );
  }

  get on() {
    return document.documentElement.hasAttribute("data-hl-present");
  }

  start() {
    this.set(true);
    this.button.focus();
  }

  set(on) {
    const isLeaving = !on && [this.button, document.body].includes(/** @type {HTMLElement} */ (document.activeElement));
    this.show(on);
    if (isLeaving) this.focusHome();
    this.changed();
  }

  show(on) {
    document.documentElement.toggleAttribute("data-hl-present", on);
    this.button.hidden = !on;
    dispatchEvent(new Event("resize")); // parts that fit the window must adapt to the new space
  }
}
