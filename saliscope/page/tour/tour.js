// A tour of the Explain view in five steps: a card next to the part that it is about. The page can be used meanwhile.
import { selectTab, tabs } from "../tabs.js";
import { fill, make, makeButton } from "../wire.js";

export class Tour {
  /**
   * @param {{steps: [string, string, string][]} & Record<string, string>} terms
   * @param {() => void} left called when the tour has ended
   */
  constructor(terms, left) {
    this.terms = terms;
    this.left = left;
    this.at = 0;
    this.part = null;
    this.title = make("h2", { class: "hl-title", id: "hl-tour-title" });
    this.text = make("p", { id: "hl-tour-text" });
    this.back = makeButton(terms.back, () => this.show(this.at - 1));
    this.next = makeButton(terms.next, () => this.show(this.at + 1), { class: "hl-button hl-primary" });
    const small = { class: "hl-button hl-tour-close", "aria-label": terms.close, title: terms.close };
    this.close = makeButton("×", () => this.end(), small);
    this.root = make(
      "div",
      {
        id: "hl-tour",
        role: "dialog",
        "aria-labelledby": this.title.id,
        "aria-describedby": this.text.id,
        hidden: true,
      },
      this.title,
      this.text,
      make("div", { class: "hl-row" }, this.back, this.next),
      this.close,
    );
    document.body.append(this.root);
    const key = (event) => {
      if (event.key !== "Escape" || this.root.hidden) return;
      event.preventDefault(); // Escape also leaves the presentation mode
      event.stopPropagation();
      this.end();
    };
    addEventListener("keydown", key, { capture: true });
    addEventListener("resize", () => this.place());
  }

  start() {
    this.root.hidden = false;
    this.show(0);
  }

  /** Show a step; after the last one, the tour ends. */
  show(at) {
    const { terms } = this,
      { steps } = terms;
    if (!steps[at]) return this.end();
    const [name, title, text] = steps[at];
    this.at = at;
    this.mark(null);
    selectTab(tabs()[0]);
    this.title.textContent = fill(terms.step, { at: at + 1, count: steps.length, title });
    this.text.textContent = text;
    this.back.disabled = at === 0;
    this.next.textContent = at === steps.length - 1 ? terms.end : terms.next;
    this.mark(this.find(name));
    this.part?.scrollIntoView({ block: "center" });
    this.place();
    this.next.focus({ preventScroll: true });
  }

  /** Return the visible part with this id or class, or else the views, which lead to it. */
  find(name) {
    const found = document.querySelector(`#${name}, #hl-status .${name}`);
    return found?.checkVisibility() ? found : document.getElementById("hl-navigation");
  }

  mark(part) {
    if (this.part) delete this.part.dataset.tour;
    this.part = part;
    if (part) part.dataset.tour = "";
  }

  /** Place the card in the half of the window that does not have the part. */
  place() {
    if (!this.part) return;
    const { top, bottom } = this.part.getBoundingClientRect();
    this.root.dataset.place = (top + bottom) / 2 > window.innerHeight / 2 ? "top" : "bottom";
  }

  end() {
    this.mark(null);
    this.root.hidden = true;
    this.left();
  }
}
