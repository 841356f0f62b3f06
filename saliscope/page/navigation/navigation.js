// The views of the page, at its top: the main ones as tabs, the others in a menu with the display settings.
import { makeTabList, selectTab, selectedTab } from "../tabs.js";
import { Disclosure, makeCaret } from "../shared/dismiss.js";
import { COLUMN, ENDS, itemOfKey } from "../shared/keys.js";
import { subscribe, update } from "../store.js";
import { setGlossary } from "../text/terms.js";
import { Tour } from "../tour/tour.js";
import { fill, make } from "../wire.js";
import { markUnused, Presentation, toggleTheme } from "./display.js";

class Menu extends Disclosure {
  /** `items`: pairs of a text and an action; `links`: pairs of a text and an address. */
  constructor(label, items, links) {
    const entry = { role: "menuitem", tabindex: -1 };
    const entries = [
      ...items.map(([text, act]) => make("button", { ...entry, text, onclick: () => this.take(act) })),
      ...links.map(([text, href]) =>
        make("a", { ...entry, href, target: "_blank", rel: "noopener", text, onclick: () => this.open(false) }),
      ),
    ];
    const text = make("span", { text: label });
    super(
      make("button", { "aria-haspopup": "menu" }, text, makeCaret()),
      make("div", { role: "menu", id: "hl-menu", "aria-label": label }, ...entries),
      "hl-menu",
    );
    this.entries = entries;
    this.text = text;
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  opened() {
    this.entries[0].focus();
  }

  take(act) {
    this.open(false);
    this.button.focus();
    act();
  }

  key(event) {
    itemOfKey(event, this.entries, { ...COLUMN, ...ENDS }, true)?.focus();
    const entry = { ArrowDown: 0, ArrowUp: -1 }[event.key];
    if (event.target !== this.button || entry === undefined) return;
    event.preventDefault();
    this.open(true);
    this.entries.at(entry).focus();
  }
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const { terms, views, more, within } = props;
  setGlossary(props.glossary);
  // "Explain" is also a button
  const tabs = views.map(([id, text]) => ({ id, text, label: fill(terms.view, { name: text }) })),
    list = makeTabList({ "aria-label": terms.views }, tabs, selectTab);
  const presentation = new Presentation(terms.leave, () => menu.button.focus());
  const tour = new Tour(props.tour, () => menu.button.focus());
  const items = [
    ...more.map(([id, text]) => [text, () => selectTab(id)]),
    [terms.theme, toggleTheme],
    [terms.present, () => presentation.start()],
    [terms.tour, () => tour.start()],
  ];
  const menu = new Menu(terms.more, items, terms.links);
  element.firstElementChild.replaceChildren(list.root, menu.root);
  const names = Object.fromEntries(more);
  const follow = () => {
    const selected = within[selectedTab()] || selectedTab();
    list.mark(selected);
    menu.text.textContent = names[selected] || terms.more;
    menu.button.toggleAttribute("data-selected", selected in names);
  };
  subscribe(["view"], follow);
  update({ view: selectedTab() });
  markUnused();
}
