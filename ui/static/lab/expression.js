// One expression: the form with its gallery, the graph, a table of all tensors, and the code.
import { draw, few, same } from "../drawing/graph.js";
import { field, number, say, settled } from "./fields.js";
import { follow, make, painted } from "../wire.js";

class Lab {
  constructor(element, props, trigger) {
    Object.assign(this, { element, props, trigger, terms: props.terms });
    const terms = this.terms, submit = () => this.ask();
    const select = (pairs) => make("select", { onchange: submit }, ...pairs.map(([value, text]) => make("option", { value, text })));
    this.gallery = make("div", { class: "hl-lab-chips", role: "group", "aria-label": terms.gallery }, ...props.gallery.map((item) =>
      make("button", { type: "button", "aria-pressed": "false", "data-id": item.id, text: item.title, onclick: () => this.choose(item) })));
    this.says = make("p", { class: "hl-quiet" });
    this.program = make("textarea", { rows: 4, spellcheck: "false", autocapitalize: "off", maxlength: props.longest, name: "program",
      oninput: () => this.own(), onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.ask(); } } });
    this.where = select([]);
    this.hook = select(props.hooks.map(([name, text]) => [name, text]));
    this.amount = make("input", { type: "number", step: "any", onchange: submit, oninput: settled(() => this.judge()) });
    this.seed = make("input", { type: "text", maxlength: 200, placeholder: terms.seed_hint, onchange: submit });
    this.again = select(props.again);
    this.second = make("input", { type: "text", maxlength: 200, placeholder: terms.seed_hint, onchange: submit });
    this.where.name = "where"; this.hook.name = "hook"; this.amount.name = "amount"; this.again.name = "again";
    this.seed.name = "seed"; this.second.name = "second";
    const rows = [field(terms.where, this.where), field(terms.hook, this.hook), field(terms.amount, this.amount),
      field(terms.seed, this.seed), field(terms.again, this.again), field(terms.second, this.second)];
    [, , this.amountRow, , , this.secondRow] = rows;
    this.line = make("p", { class: "hl-line", role: "status" });
    this.finding = make("div", { class: "hl-finding", hidden: true }, make("p"));
    this.graph = make("div", { class: "hl-graph" });
    this.table = make("div", { class: "hl-scroll", tabindex: 0, role: "group", "aria-label": terms.table });
    this.code = make("code");
    const copy = make("button", { type: "button", class: "hl-button", text: terms.copy, onclick: async () => {
      try { await navigator.clipboard.writeText(this.code.textContent); copy.textContent = terms.copied; } catch { copy.textContent = terms.by_hand; }
      setTimeout(() => { copy.textContent = terms.copy; }, 2000);
    } });
    const program = field(terms.program, this.program);
    program.classList.add("hl-wide");
    this.results = make("div", { class: "hl-lab-results", hidden: true },
      make("div", {}, make("h2", { class: "hl-title", text: terms.graph }), this.graph, make("p", { class: "hl-quiet", text: terms.legend })),
      make("div", {}, make("h2", { class: "hl-title", text: terms.code }), make("div", { class: "hl-code" }, make("pre", { tabindex: 0 }, this.code), copy),
        make("h2", { class: "hl-title hl-next", text: terms.table }), this.table));
    element.firstElementChild.replaceChildren(make("p", { class: "hl-quiet", text: terms.text }), this.gallery, this.says,
      make("form", { class: "hl-lab-form", novalidate: true, onsubmit: (event) => { event.preventDefault(); this.ask(); } }, program,
        make("p", { class: "hl-quiet hl-wide", text: terms.grammar }), ...rows,
        make("div", { class: "hl-wide hl-lab-actions" }, make("button", { type: "submit", class: "hl-button hl-main-button", text: terms.run }))),
      make("div", { class: "hl-lab-side" }, this.line, this.finding, this.results));
    this.fill(props.gallery[0]);
  }

  /** Put an experiment into the form. */
  fill(item) {
    const set = item.settings;
    this.program.value = set.program;
    this.program.rows = Math.max(4, set.program.split("\n").length);
    this.names([{ name: set.where }], set.where);
    for (const name of ["hook", "amount", "seed", "again", "second"]) this[name].value = set[name];
    this.says.textContent = item.says;
    this.mark(item.id);
    this.show();
  }

  mark(id) {
    for (const button of this.gallery.children) button.setAttribute("aria-pressed", String(button.dataset.id === id));
  }

  choose(item) {
    this.fill(item);
    this.ask();
  }

  /** The visitor edits the expression: settings of the chosen experiment that may not fit any more are cleared. */
  own() {
    if (this.gallery.querySelector("[aria-pressed=true]")) this.seed.value = this.second.value = this.again.value = "";
    this.program.rows = Math.min(12, Math.max(4, this.program.value.split("\n").length));
    this.mark(null);
    this.show();
    this.says.textContent = "";
    this.stale();
  }

  /** Mark the result as one of another expression than the field holds. */
  stale() {
    if (this.results.hidden || this.program.value === this.asked) return;
    this.results.classList.add("hl-old");
    this.line.textContent = `${this.said} ${this.terms.changed}`;
    this.line.dataset.kind = "busy";
  }

  names(list, chosen) {
    this.where.replaceChildren(...list.map(({ name, text }) => make("option", { value: name, text: text ? `${name} · ${text}` : name })));
    this.where.value = chosen;
  }

  /** Hide what the chosen hook does not need. */
  show() {
    const kind = this.props.hooks.find(([name]) => name === this.hook.value);
    this.amountRow.hidden = !kind[2];
    this.amountRow.firstElementChild.textContent = kind[2] || this.terms.amount;
    this.secondRow.hidden = !this.again.value;
  }

  /** The hook's number, 1 where it takes none; undefined, and said at the field, where it cannot be used. */
  judge() {
    const [min, max, sentence] = this.props.amounts[this.hook.value] || [];
    const amount = sentence ? number(this.amount, { min, max }) : 1;
    say(this.amount, amount === undefined ? sentence : "");
    return amount;
  }

  ask() {
    this.show();
    const amount = this.judge();
    if (amount === undefined) return this.refuse(this.terms.not_run);
    this.asked = this.program.value;
    this.trigger("submit", { program: this.program.value, where: this.where.value, hook: this.hook.value, amount,
      seed: this.seed.value, again: this.again.value, second: this.second.value });
  }

  /** Why nothing was computed; the result of before stays and is marked. */
  refuse(sentence) {
    const old = !this.results.hidden;
    this.line.textContent = old ? `${sentence} ${this.terms.last_valid}` : sentence;
    this.line.dataset.kind = "error";
    this.results.classList.toggle("hl-old", old);
  }

  render() {
    const since = performance.now(), value = this.props.value;
    if (!value) return;
    const faulty = { amount: this.amount, seed: this.seed, second: this.second }[value.field];
    if (!value.waiting) {
      for (const control of [this.seed, this.second]) say(control, control === faulty ? value.error : "");
      if (value.field === "program") this.program.setAttribute("aria-invalid", "true");
      else this.program.removeAttribute("aria-invalid");
    }
    if (value.error) {
      if (faulty) say(faulty, value.error);
      this.refuse(faulty ? this.terms.not_run : value.error);
    } else {
      this.line.textContent = value.waiting || value.line;
      this.line.dataset.kind = value.waiting ? "busy" : "done";
    }
    if (value.tensors) {
      this.results.hidden = false;
      this.results.classList.remove("hl-old");
      this.said = value.line;
      this.finding.hidden = !value.finding;
      this.finding.firstElementChild.textContent = value.finding;
      this.names(value.names, value.where);
      this.code.textContent = value.code;
      this.results.classList.remove("hl-broad");
      this.rows(value, draw(this.graph, value, this.terms));
      const frame = this.graph.firstElementChild;      // a wide graph gets the whole width
      this.results.classList.toggle("hl-broad", frame.scrollWidth > frame.clientWidth + 1);
      this.stale();                                    // edited while it was computed
    }
    if (!value.waiting) painted(this.element, value.id, since);
  }

  rows(value, shade) {
    const count = value.again ? 5 : 4;
    const head = make("tr", {}, ...this.terms.columns.slice(0, count).map((text) => make("th", { scope: "col", text })));
    const body = value.tensors.map((tensor) => make("tr", { class: tensor.hooked ? "hl-hooked" : null },
      make("th", { scope: "row" }, make("code", { text: tensor.name }), make("span", { class: "hl-quiet", text: tensor.text })),
      this.cells(tensor.value), this.cells(tensor.without, shade),
      this.cells(tensor.hooked_gradient, shade, !same(tensor.hooked_gradient, tensor.without)),
      ...(value.again ? [this.cells(tensor.again, shade)] : [])));
    this.table.replaceChildren(make("table", { class: "hl-table" }, make("thead", {}, head), make("tbody", {}, ...body)));
  }

  cells(rows, shade, changed) {
    const cell = make("td", { class: changed ? "hl-changed" : null });
    if (!rows) return make("td", { class: "hl-quiet", text: this.terms.none });
    const grid = make("div", { class: "hl-numbers" });
    grid.style.gridTemplateColumns = `repeat(${rows[0].length}, auto)`;
    for (const entry of rows.flat()) {
      const span = make("span", { text: few(entry), title: String(entry) });
      if (shade) span.style.background = shade(entry);
      grid.append(span);
    }
    cell.append(grid);
    return cell;
  }
}

export function mount(element, props, trigger, watch) {
  const lab = new Lab(element, props, trigger);
  let begun = Boolean(props.value);
  new IntersectionObserver(() => {                     // the first experiment runs as soon as the tab is seen
    if (begun || !element.checkVisibility()) return;
    begun = true;
    lab.ask();
  }).observe(element);
  follow(props, watch, ["value"], () => lab.render());
}
