// The ranking of methods: a form, and a sortable table that fills as results arrive; clicking a row selects its method.
import { COLUMNS, csv, FIRST, Row, sortRows } from "./rows.js";
import { loadImage } from "../drawing/surface.js";
import { selectTab } from "../tabs.js";
import { state, subscribe, update } from "../store.js";
import { Component, mountClass } from "../parts.js";
import { StatusLine } from "../shared/status_line.js";
import { makeForm, makeSelect, markInvalid } from "../shared/elements.js";
import { make, downloadFile, makeButton } from "../wire.js";

const MAX_PANELS = 4;

class Ranking extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    const { terms } = this;
    this.form = props.form;
    this.id = element.id;
    this.rows = new Map();
    this.value = null;
    this.photo = null;
    this.sort = "order";
    this.direction = 1;
    this.status = new StatusLine(terms.progress);
    this.notes = make("div", { class: "hl-ranking-notes" });
    this.short = make("p", { class: "hl-quiet hl-ranking-short" });
    this.others = make("details", { class: "hl-ranking-others", hidden: true }, make("summary"), make("ul"));
    this.root.replaceChildren(
      make("h2", { class: "hl-heading", text: terms.title }),
      make("p", { class: "hl-quiet hl-ranking-text", text: terms.text }),
      this.buildForm(),
      make("div", { class: "hl-ranking-say" }, this.status.line, this.status.bar),
      this.buildTable(),
      this.short,
      this.notes,
      this.others,
    );
    subscribe(["question"], () => this.mark());
    subscribe(["imagePath"], () => {
      if (state.imagePath === "" && !this.stopButton.disabled) this.trigger("stop", {});
    });
    new ResizeObserver(() => {
      const { clientWidth: wide } = this.box;
      if (!wide) return; // in a hidden view
      this.box.toggleAttribute("data-medium", wide < 760);
      this.box.toggleAttribute("data-narrow", wide < 520);
    }).observe(this.box);
    this.order("order", 1);
  }

  buildForm() {
    const { terms, form, id } = this;
    this.seconds = make("input", {
      type: "number",
      id: `${id}-seconds`,
      min: form.low,
      max: form.high,
      step: "any",
      value: form.seconds,
      oninput: () => this.validate(),
    });
    const layers = { every: terms.stages, here: terms.here };
    this.layers = makeSelect({ id: `${id}-layers` }, Object.entries(layers));
    this.startButton = makeButton(terms.start, null, { type: "submit", class: "hl-button hl-ranking-go" });
    this.stopButton = makeButton(terms.stop, () => this.trigger("stop", {}), {
      disabled: true,
      "aria-label": terms.stop_name,
    });
    this.compareButton = makeButton(terms.four, () => this.compare(), { disabled: true });
    this.csvButton = makeButton(terms.csv, () => this.saveCsv(), { disabled: true });
    this.message = make("p", { class: "hl-wrong hl-ranking-wrong", id: `${id}-wrong`, role: "alert" });
    return makeForm(
      { class: "hl-ranking-form" },
      () => this.start(),
      make("label", { for: this.seconds.id }, terms.seconds),
      this.seconds,
      make("label", { for: this.layers.id }, terms.layers),
      this.layers,
      this.startButton,
      this.stopButton,
      make("span", { class: "hl-ranking-gap" }),
      this.compareButton,
      this.csvButton,
      this.message,
    );
  }

  buildTable() {
    this.heads = Object.fromEntries(COLUMNS.map((name) => [name, this.head(name)]));
    const [order, ...others] = Object.values(this.heads);
    const head = make("tr", {}, order, make("td", { class: "hl-ranking-image" }), ...others);
    this.body = make("tbody", { onpointerleave: () => this.draw(), onfocusout: () => setTimeout(() => this.draw()) });
    this.empty = make("p", { class: "hl-quiet hl-ranking-none", text: this.terms.empty });
    this.box = make(
      "div",
      { class: "hl-ranking-box", tabindex: 0, role: "region", "aria-label": this.terms.title },
      make("table", {}, make("thead", {}, head), this.body),
      this.empty,
    );
    return this.box;
  }

  head(name) {
    const [text, title] = this.terms.columns[name];
    const button = make(
      "button",
      { title, onclick: () => this.order(name) },
      text,
      make("i", { "aria-hidden": "true" }),
    );
    return make("th", { scope: "col", class: `hl-ranking-${name}` }, button);
  }

  /** Sort by a column; sorting by the same one again reverses the order. */
  order(name, direction = this.sort === name ? -this.direction : FIRST[name]) {
    [this.sort, this.direction] = [name, direction];
    for (const [each, head] of Object.entries(this.heads)) {
      if (each === name) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    this.draw(true);
  }

  validate() {
    const seconds = this.seconds.valueAsNumber,
      wrong = !(seconds >= this.form.low && seconds <= this.form.high);
    markInvalid(this.seconds, this.message, wrong ? this.terms.wrong : "");
    return !wrong;
  }

  start() {
    if (!this.validate()) return void this.seconds.focus();
    this.showStatus({ kind: "busy", parts: [{ text: this.terms.asked }] });
    this.stopButton.disabled = false;
    this.subject = state.question?.subject; // what the status is about
    this.mark();
    this.trigger("submit", { seconds: this.seconds.valueAsNumber, layers: this.layers.value });
  }

  showStatus({ kind, parts, fraction = null }) {
    this.status.say(kind, parts, fraction);
    this.status.line.setAttribute("aria-live", kind === "busy" ? "off" : "polite"); // not five times a second
    this.element.dataset.state = kind;
  }

  async receive(value) {
    if (!value) return;
    this.showStatus(value);
    this.stopButton.disabled = value.kind !== "busy";
    if (value.rows) {
      this.value = value;
      this.subject = value.subject ?? this.subject;
      this.photo = value.crop ? await loadImage(value.crop.src) : this.photo;
      if (this.value !== value) return false;
      this.showDetails(value);
      this.mark();
    }
  }

  /** Update the text below the table. */
  showDetails({ notes = [], refused = [], steps = [0, 0] }) {
    this.notes.replaceChildren(...notes.map((text) => make("p", { text })));
    this.short.textContent =
      steps[0] < steps[1] ? this.terms.short.replace("{steps}", steps[0]).replace("{full}", steps[1]) : "";
    this.others.hidden = !refused.length;
    this.others.children[0].textContent = this.terms.refused.replace("{count}", refused.length);
    this.others.children[1].replaceChildren(
      ...refused.map(([name, why]) => make("li", {}, make("strong", { text: name }), ` ${why}`)),
    );
  }

  /** Mark a ranking of another request as outdated, and highlight the row that the page shows. */
  mark() {
    const { value } = this,
      { question } = state,
      old = Boolean(value?.subject && question && value.subject !== question.subject);
    this.root.dataset.old = String(old);
    this.status.line.parentElement.dataset.old = String(this.subject !== question?.subject);
    if (old && this.status.kind !== "busy") this.showStatus({ kind: "old", parts: [{ text: this.terms.old }] });
    else if (!old && this.status.kind === "old") this.showStatus(value);
    this.draw();
  }

  /** Return the rows in the current order. */
  sortedRows() {
    return sortRows((this.value && this.value.rows) || [], this.sort, this.direction);
  }

  /** Rows do not move while the pointer or focus is on one; new ones are then appended. */
  draw(userAction = false) {
    const rows = this.sortedRows(),
      { steps = [0, 0] } = this.value || {},
      names = state.question?.names;
    const known = new Set(rows.map((row) => row.id));
    for (const [id, row] of this.rows)
      if (!known.has(id)) {
        row.element.remove();
        this.rows.delete(id);
      }
    for (const row of rows) {
      if (!this.rows.has(row.id)) this.rows.set(row.id, new Row(this.terms, (each) => this.choose(each)));
      const isHere = ([method, layer]) => method === names?.method && (!layer || layer === names.layer);
      const here = !row.control && [[row.method, row.layer], ...row.equal].some(isHere);
      this.rows.get(row.id).show(row, { full: steps[1], photo: this.photo, here });
    }
    const keepOrder = !userAction && (this.body.matches(":hover") || this.body.contains(document.activeElement));
    const elements = rows.map((row) => this.rows.get(row.id).element);
    if (keepOrder)
      for (const each of elements) {
        if (!each.parentElement) this.body.append(each);
      }
    else
      elements.forEach((each, k) => {
        if (this.body.children[k] !== each) this.body.insertBefore(each, this.body.children[k] || null);
      });
    this.empty.hidden = rows.length > 0;
    this.compareButton.disabled = this.csvButton.disabled = !rows.some((row) => !row.control);
  }

  /** Select the row's method and layer on the page. */
  choose({ method, layer }) {
    this.trigger("change", layer ? { method, layer } : { method });
    if (this.id === "hl-ranking") selectTab("overlay");
  }

  saveCsv() {
    downloadFile(new Blob([csv(this.sortedRows())], { type: "text/csv" }), "ranking.csv");
  }

  /** Open the first rows in the current order in the comparison. */
  compare() {
    const rows = this.sortedRows()
      .filter((row) => !row.control)
      .slice(0, MAX_PANELS);
    update({ comparison: rows.map(({ method, layer }) => ({ own: layer ? { method, layer } : { method } })) });
    selectTab("compare");
  }
}

export const mount = mountClass(Ranking);
