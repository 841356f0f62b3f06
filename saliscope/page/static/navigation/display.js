// How the page is displayed: light or dark, and the presentation mode, with large text and without the settings.
import { bindParameters } from "../page/address.js";
import { makeButton } from "../wire.js";

const PARAMETER = "__theme"; // Gradio reads it when the page opens

/** Change between light and dark; the address keeps the choice. */
export function toggleTheme() {
  const dark = document.body.classList.toggle("dark"),
    url = new URL(location.href);
  url.searchParams.set(PARAMETER, dark ? "dark" : "light");
  history.replaceState(null, "", url);
}

/** Keep the width of the window as an attribute, because Gradio drops rules for the whole page inside @media. */
export function followWidth() {
  const root = document.documentElement;
  const follow = () => {
    root.dataset.hlWidth = innerWidth < 768 ? "phone" : innerWidth < 1100 ? "tablet" : "wide";
  };
  addEventListener("resize", follow);
  follow();
}

/** The presentation mode, which the Escape key and a button leave. */
export class Presentation {
  constructor(text) {
    this.button = makeButton(text, () => this.set(false), { id: "hl-leave", hidden: true });
    document.body.append(this.button);
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.on && !event.defaultPrevented) this.set(false);
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
    this.show(on);
    this.changed();
  }

  show(on) {
    document.documentElement.toggleAttribute("data-hl-present", on);
    this.button.hidden = !on;
  }
}
