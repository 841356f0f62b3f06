// The method picker: a button, and a panel with a search field and the methods grouped by question.
import { Panel } from "./panel.js";
import { searchMethods } from "./search.js";
import { highlight } from "../panel/combobox.js";
import { make } from "../wire.js";

const readable = (name) => String(name || "").replaceAll("_", " ");

class Picker {
  constructor(element, props, chosen) {
    const host = element.closest("[id^='hl-']");
    Object.assign(this, { props, chosen, id: host ? host.id : "hl-method", offer: {}, options: [], at: -1 });
    const label = make("span", { class: "hl-methods-label", id: `${this.id}-label`, text: props.title });
    this.buildButton(label.id);
    this.buildSearch();
    this.buildLists();
    const box = this.buildPanel();
    this.button.setAttribute("aria-controls", box.id);
    element.firstElementChild.replaceChildren(label, this.button, box);
    this.panel = new Panel(this.button, box, () => this.opened());
  }

  buildButton(label) {
    this.title = make("span", { class: "hl-methods-title", id: `${this.id}-title` });
    this.cost = make("span", { class: "hl-methods-cost", id: `${this.id}-cost` });
    this.button = make(
      "button",
      {
        type: "button",
        class: "hl-methods-button",
        id: `${this.id}-button`,
        "aria-haspopup": "dialog",
        "aria-expanded": "false",
        "aria-labelledby": `${label} ${this.title.id} ${this.cost.id}`,
        onclick: () => this.panel.toggle(),
        onkeydown: (event) => {
          if (["ArrowDown", "ArrowUp"].includes(event.key)) {
            event.preventDefault();
            this.panel.open();
          }
        },
      },
      this.title,
      this.cost,
      make("i", { class: "hl-methods-arrow", "aria-hidden": "true" }),
    );
  }

  buildSearch() {
    const { words, title } = this.props;
    this.list = make("div", {
      role: "listbox",
      id: `${this.id}-list`,
      tabindex: 0,
      "aria-label": title,
      class: "hl-methods-list",
      onclick: (event) => this.select(event.target.closest("[role=option]")),
    });
    this.search = make("input", {
      type: "text",
      role: "combobox",
      "aria-expanded": "true",
      "aria-autocomplete": "list",
      autocomplete: "off",
      spellcheck: "false",
      "aria-controls": this.list.id,
      "aria-label": words.search,
      placeholder: words.search,
      oninput: () => this.draw(),
    });
  }

  /** Create the parts around the list: jump buttons, messages, and the methods that do not fit the model. */
  buildLists() {
    this.jumps = make("div", { class: "hl-methods-jumps", role: "group", "aria-label": this.props.words.jump });
    this.count = make("p", { class: "hl-methods-count", role: "status" });
    this.none = make("p", { class: "hl-methods-none", hidden: true });
    this.note = make("p", { class: "hl-methods-note" });
    const ontoggle = () => {
      if (this.others.open && !this.search.value.trim()) this.others.scrollIntoView({ block: "start" });
    };
    const attributes = { class: "hl-methods-others", hidden: true, ontoggle };
    this.others = make("details", attributes, make("summary", {}), make("ul", {}));
  }

  buildPanel() {
    const { words } = this.props;
    const close = make("button", {
      type: "button",
      class: "hl-button hl-methods-close",
      text: words.close,
      onclick: () => this.panel.close(true),
    });
    return make(
      "div",
      {
        class: "hl-methods-panel",
        id: `${this.id}-panel`,
        role: "dialog",
        "aria-label": words.choose,
        popover: "manual",
        hidden: true,
        onkeydown: (event) => this.handleKey(event),
      },
      make("div", { class: "hl-methods-head" }, this.search, close),
      this.jumps,
      this.count,
      make("div", { class: "hl-methods-scroll" }, this.list, this.none, this.others, this.note),
    );
  }

  /** Show the selected method and the available ones. */
  show() {
    const text = this.props.offer || "";
    if (text !== this.text) [this.text, this.offer] = [text, text ? JSON.parse(text) : {}];
    const methods = this.offer.methods || [],
      name = this.props.value;
    const own = methods.find((method) => method.name === name);
    // Before the model is loaded, only the name of the selected method is known.
    const first = JSON.parse(this.props.names || "[]").find(([, value]) => value === name);
    this.title.textContent = own ? own.title : first ? first[0] : readable(name);
    this.cost.textContent = own ? own.cost : "";
    this.button.dataset.method = name || "";
    if (this.panel.isOpen) this.draw(true);
  }

  opened() {
    this.search.value = "";
    this.draw();
    const coarse = window.matchMedia("(pointer: coarse)").matches; // an on-screen keyboard would cover the list
    (coarse ? this.list : this.search).focus({ preventScroll: true });
  }

  /** Draw the list for the search; `stay` keeps the marked method if it is still listed. */
  draw(stay = false) {
    const { groups = {}, methods = [], others = [] } = this.offer,
      query = this.search.value,
      words = this.props.words;
    const before = stay ? this.options[this.at]?.dataset.method : this.props.value;
    const shown = searchMethods(methods, query, groups),
      otherMatches = searchMethods(others, query, groups);
    const rows = query.trim()
      ? shown.map((method) => this.row(method, groups[method.group]))
      : Object.entries(groups).flatMap(([group, question]) =>
          this.group(
            group,
            question,
            shown.filter((method) => method.group === group),
          ),
        );
    this.list.replaceChildren(...rows);
    this.drawJumps(
      query.trim() ? [] : Object.entries(groups).filter(([group]) => methods.some((method) => method.group === group)),
    );
    this.list.hidden = !shown.length;
    this.options = [...this.list.querySelectorAll("[role=option]")];
    this.none.hidden = shown.length > 0;
    this.none.textContent = methods.length
      ? words.none.replace("{query}", () => query.trim().slice(0, 60))
      : words.waiting;
    this.count.textContent = !query.trim()
      ? ""
      : shown.length === 1
        ? words.found[0]
        : words.found[1].replace("{count}", shown.length);
    this.drawOthers(otherMatches, query.trim() && !shown.length);
    this.note.textContent = this.offer.note || "";
    const at = this.options.findIndex((option) => option.dataset.method === before);
    this.mark(query.trim() && !stay ? 0 : Math.max(0, at), query.trim() ? "nearest" : "center");
  }

  group(group, question, methods) {
    if (!methods.length) return [];
    const title = make("div", { class: "hl-methods-question", id: `${this.id}-${group}`, text: question });
    return [
      make("div", { role: "group", "aria-labelledby": title.id }, title, ...methods.map((method) => this.row(method))),
    ];
  }

  /** Draw buttons that scroll to each group. */
  drawJumps(groups) {
    const focused = this.jumps.contains(document.activeElement);
    this.jumps.hidden = !groups.length;
    if (focused && this.jumps.children.length === groups.length) return;
    this.jumps.replaceChildren(
      ...groups.map(([group, question]) =>
        make("button", {
          type: "button",
          text: question,
          onclick: () => {
            const first = this.options.findIndex(
              (option) => option.closest("[role=group]")?.getAttribute("aria-labelledby") === `${this.id}-${group}`,
            );
            this.mark(first, "center");
            document.getElementById(`${this.id}-${group}`)?.parentElement.scrollIntoView({ block: "start" });
            this.list.focus({ preventScroll: true });
          },
        }),
      ),
    );
  }

  row(method, question) {
    const id = `${this.id}-is-${method.name}`,
      chosen = method.name === this.props.value,
      { badges = [] } = method;
    return make(
      "div",
      {
        role: "option",
        id,
        "aria-selected": String(chosen),
        "data-method": method.name,
        class: "hl-methods-option",
        "aria-description": badges.map(([, tip]) => tip).join(" ") || null,
      },
      make("span", { class: "hl-methods-name" }, ...highlight(method.title, this.search.value)),
      make("span", { class: "hl-methods-cost", text: method.cost, "data-cost": method.cost }),
      make("span", { class: "hl-methods-line", text: question ? `${question} ${method.line}` : method.line }),
      ...(badges.length
        ? [
            make(
              "span",
              { class: "hl-methods-badges" },
              ...badges.map(([text, title]) => make("span", { text, title })),
            ),
          ]
        : []),
    );
  }

  /** List the methods that do not fit the model, collapsed; `open` if nothing else was found. */
  drawOthers(others, open) {
    const [summary, list] = this.others.children;
    this.others.hidden = !others.length;
    this.others.open = Boolean(open);
    summary.textContent = this.props.words.others.replace("{count}", others.length);
    list.replaceChildren(
      ...others.map((method) =>
        make("li", {}, make("strong", { text: method.title }), make("span", { text: ` ${method.why}` })),
      ),
    );
  }

  /** Mark the method that Enter selects. */
  mark(at, block = "nearest") {
    this.at = this.options.length ? Math.min(this.options.length - 1, Math.max(0, at)) : -1;
    this.options.forEach((option, k) => option.classList.toggle("hl-methods-at", k === this.at));
    const marked = this.options[this.at];
    for (const field of [this.search, this.list]) {
      if (marked) field.setAttribute("aria-activedescendant", marked.id);
      else field.removeAttribute("aria-activedescendant");
    }
    marked?.scrollIntoView({ block });
  }

  handleKey(event) {
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      return this.panel.close(true);
    }
    if (event.target !== this.search && event.target !== this.list) return undefined;
    const jump = { ArrowDown: 1, ArrowUp: -1, PageDown: 6, PageUp: -6 }[event.key];
    const end = event.target === this.list && { Home: 0, End: this.options.length - 1 }[event.key];
    if (jump) {
      event.preventDefault();
      this.mark(this.at + jump);
    } else if (typeof end === "number") {
      event.preventDefault();
      this.mark(end);
    } else if (event.key === "Enter" || (event.key === " " && event.target === this.list)) {
      event.preventDefault();
      this.select(this.options[this.at]);
    } else if (
      event.target === this.list &&
      event.key.length === 1 &&
      !event.ctrlKey &&
      !event.metaKey &&
      !event.altKey
    )
      this.search.focus();
    return undefined;
  }

  select(option) {
    if (!option) return;
    const name = option.dataset.method,
      same = name === this.props.value;
    this.panel.close(true);
    if (same) return;
    this.props.value = name;
    this.show();
    this.chosen(name);
  }
}

export function mount(element, props, trigger, watch) {
  const picker = new Picker(element, props, (method) => trigger("input", { method }));
  watch(["value", "offer", "names"], () => picker.show());
  picker.show();
}
