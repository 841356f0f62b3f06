// One expression: the form with its examples, the graph, a table of all tensors, and the code.
import { draw, formatNumber, isEqual } from "../drawing/graph.js";
import { copyButton } from "../shared/copy.js";
import { debounce, field, readNumber, showMessage, makeChips } from "./fields.js";
import { Component, mountClass } from "../parts.js";
import { bindParameters } from "../shared/address.js";
import { StatusLine } from "../shared/status_line.js";
import { makeForm, makeOptions, makeRow, makeSelect, makeTable } from "../shared/elements.js";
import { make } from "../wire.js";

class Lab extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    /** @type {Record<string, any>} */
    this.fields = {};
    const { terms } = this;
    this.gallery = makeChips(terms.gallery, props.gallery, (item) => this.choose(item));
    this.description = make("p", { class: "hl-quiet" });
    this.status = new StatusLine("");
    this.finding = make("div", { class: "hl-finding", hidden: true }, make("p"));
    this.root.replaceChildren(
      make("p", { class: "hl-quiet", text: terms.text }),
      this.gallery.root,
      this.description,
      this.buildForm(),
      make("div", { class: "hl-lab-side" }, this.status.line, this.finding, this.buildResults()),
    );
    this.fill(props.gallery[0]);
    this.changed = this.bindExperiment();
    let started = Boolean(props.value);
    new IntersectionObserver(() => {
      // run the first experiment as soon as the tab is visible
      if (started || !element.checkVisibility()) return;
      started = true;
      this.run();
    }).observe(element);
  }

  /** Bind the experiment of the gallery to the address, which has no expression of the user. */
  bindExperiment() {
    const { gallery } = this.props;
    return bindParameters(
      ["experiment"],
      () => ({ experiment: this.item === gallery[0] ? "" : this.item?.id }),
      ({ experiment }) => {
        const item = gallery.find(({ id }) => id === experiment) || gallery[0];
        if (item === this.item) return;
        this.fill(item);
        if (this.submitted !== undefined) this.run();
      },
    );
  }

  buildForm() {
    const { terms, props } = this,
      onchange = () => this.run();
    const row = (name, control) => {
      control.name = name;
      this.fields[name] = control;
      return field(terms[name], control);
    };
    const select = (pairs) => makeSelect({ onchange }, pairs);
    const text = () => make("input", { type: "text", maxlength: 200, placeholder: terms.seed_hint, onchange });
    const oninput = debounce(() => this.validate());
    const program = row("program", this.programField());
    program.classList.add("hl-wide");
    const rows = [
      row("where", select([])),
      row("hook", select(props.hooks)),
      (this.amountRow = row("amount", make("input", { type: "number", step: "any", onchange, oninput }))),
      row("seed", text()),
      row("again", select(props.again)),
      (this.secondRow = row("second", text())),
    ];
    return makeForm(
      { class: "hl-lab-form" },
      () => this.run(),
      program,
      make("p", { class: "hl-quiet hl-wide", text: terms.grammar }),
      ...rows,
      make(
        "div",
        { class: "hl-wide hl-lab-actions" },
        make("button", { type: "submit", class: "hl-button hl-main-button", text: terms.run }),
      ),
    );
  }

  programField() {
    return make("textarea", {
      rows: 4,
      spellcheck: "false",
      autocapitalize: "off",
      maxlength: this.props.longest,
      oninput: () => this.edited(),
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          this.run();
        }
      },
    });
  }

  buildResults() {
    const { terms } = this,
      title = (text, more = "") => make("h2", { class: `hl-title${more}`, text });
    this.graph = make("div", { class: "hl-graph" });
    this.table = make("div", { class: "hl-scroll", tabindex: 0, role: "group", "aria-label": terms.table });
    this.code = make("code");
    const legend = make("p", { class: "hl-quiet", text: terms.legend });
    const code = make(
      "div",
      { class: "hl-code" },
      make("pre", { tabindex: 0 }, this.code),
      copyButton(terms, () => this.code.textContent),
    );
    this.results = make(
      "div",
      { class: "hl-lab-results", hidden: true },
      make("div", {}, title(terms.graph), this.graph, legend),
      make("div", {}, title(terms.code), code, title(terms.table, " hl-next"), this.table),
    );
    return this.results;
  }

  /** Fill the form with an experiment. */
  fill(item) {
    const set = item.settings;
    this.fields.program.value = set.program;
    this.fields.program.rows = Math.max(4, set.program.split("\n").length);
    this.listTensors([{ name: set.where }], set.where);
    for (const name of ["hook", "amount", "seed", "again", "second"]) this.fields[name].value = set[name];
    this.description.textContent = item.says;
    this.markItem(item);
    this.showFields();
  }

  /** Mark an experiment as selected; null after an edit. */
  markItem(item) {
    this.item = item;
    this.gallery.mark(item?.id ?? null);
    this.changed?.();
  }

  choose(item) {
    this.fill(item);
    this.run();
  }

  /** Handle an edit of the expression: clear settings of the selected experiment that may no longer apply. */
  edited() {
    if (this.gallery.root.querySelector("[aria-pressed=true]"))
      this.fields.seed.value = this.fields.second.value = this.fields.again.value = "";
    this.fields.program.rows = Math.min(12, Math.max(4, this.fields.program.value.split("\n").length));
    this.markItem(null);
    this.showFields();
    this.description.textContent = "";
    this.markOutdated();
  }

  /** Mark the result as outdated if the expression has changed. */
  markOutdated() {
    if (this.results.hidden || this.fields.program.value === this.submitted) return;
    this.results.classList.add("hl-old");
    this.status.say("busy", `${this.says} ${this.terms.changed}`);
  }

  listTensors(list, chosen) {
    const pairs = list.map(({ name, text }) => [name, text ? `${name} · ${text}` : name]);
    this.fields.where.replaceChildren(...makeOptions(pairs));
    this.fields.where.value = chosen;
  }

  /** Hide fields that the selected hook does not use. */
  showFields() {
    const kind = this.props.hooks.find(([name]) => name === this.fields.hook.value);
    this.amountRow.hidden = !kind[2];
    this.amountRow.firstElementChild.textContent = kind[2] || this.terms.amount;
    this.secondRow.hidden = !this.fields.again.value;
  }

  /** Return the hook's number, or 1 if it uses none; undefined, with a message at the field, if it is invalid. */
  validate() {
    const [min, max, message] = this.props.amounts[this.fields.hook.value] || [];
    const amount = message ? readNumber(this.fields.amount, { min, max }) : 1;
    showMessage(this.fields.amount, amount === undefined ? message : "");
    return amount;
  }

  run() {
    this.showFields();
    const amount = this.validate();
    if (amount === undefined) return this.showError(this.terms.not_run);
    this.submitted = this.fields.program.value;
    this.trigger("submit", {
      program: this.fields.program.value,
      where: this.fields.where.value,
      hook: this.fields.hook.value,
      amount,
      seed: this.fields.seed.value,
      again: this.fields.again.value,
      second: this.fields.second.value,
    });
  }

  /** Show why nothing was computed; the previous result stays and is marked as outdated. */
  showError(message) {
    const old = !this.results.hidden;
    this.status.say("error", old ? `${message} ${this.terms.last_valid}` : message);
    this.results.classList.toggle("hl-old", old);
  }

  receive(value) {
    if (!value) return;
    const invalid = { amount: this.fields.amount, seed: this.fields.seed, second: this.fields.second }[value.field];
    if (!value.waiting) {
      for (const control of [this.fields.seed, this.fields.second])
        showMessage(control, control === invalid ? value.error : "");
      if (value.field === "program") this.fields.program.setAttribute("aria-invalid", "true");
      else this.fields.program.removeAttribute("aria-invalid");
    }
    if (value.error) {
      if (invalid) showMessage(invalid, value.error);
      this.showError(invalid ? this.terms.not_run : value.error);
    } else this.status.say(value.waiting ? "busy" : "done", value.waiting || value.line);
    if (value.tensors) {
      this.results.hidden = false;
      this.results.classList.remove("hl-old");
      this.says = value.line;
      this.finding.hidden = !value.finding;
      this.finding.firstElementChild.textContent = value.finding;
      this.listTensors(value.names, value.where);
      this.code.textContent = value.code;
      this.results.classList.remove("hl-broad");
      this.drawTable(value, draw(this.graph, value, this.terms));
      const frame = this.graph.firstElementChild; // a wide graph uses the whole width
      this.results.classList.toggle("hl-broad", frame.scrollWidth > frame.clientWidth + 1);
      this.markOutdated(); // the expression was edited during the computation
    }
    return !value.waiting;
  }

  drawTable(value, shade) {
    const count = value.again ? 5 : 4;
    const rows = value.tensors.map((tensor) => {
      const texts = [make("code", { text: tensor.name }), make("span", { class: "hl-quiet", text: tensor.text })],
        cells = [
          this.cells(tensor.value),
          this.cells(tensor.without, shade),
          this.cells(tensor.hooked_gradient, shade, !isEqual(tensor.hooked_gradient, tensor.without)),
          this.cells(tensor.again, shade),
        ];
      const name = make("th", { scope: "row" }, ...texts);
      return makeRow(name, cells.slice(0, count - 1), { class: tensor.hooked ? "hl-hooked" : null });
    });
    this.table.replaceChildren(makeTable(this.terms.columns.slice(0, count), rows, { class: "hl-table" }));
  }

  cells(rows, shade, changed) {
    const cell = make("td", { class: changed ? "hl-changed" : null });
    if (!rows) return make("td", { class: "hl-quiet", text: this.terms.none });
    const grid = make("div", { class: "hl-numbers" });
    grid.style.gridTemplateColumns = `repeat(${rows[0].length}, auto)`;
    for (const entry of rows.flat()) {
      const span = make("span", { text: formatNumber(entry), title: String(entry) });
      if (shade) span.style.background = shade(entry);
      grid.append(span);
    }
    cell.append(grid);
    return cell;
  }
}

export const mount = mountClass(Lab);
