// The ranking of methods: its form, and a table that fills as results arrive and can be sorted; a row is one click away.
import { mail } from "../compare/mail.js";
import { now } from "./now.js";
import { COLUMNS, csv, FIRST, Row, sorted } from "./rows.js";
import { picture } from "../drawing/surface.js";
import { follow, make, painted, save } from "../wire.js";

const FOUR = 4;

class Ranking {
  constructor(element, props, trigger) {
    const { terms, form } = props, id = element.closest("[id^='hl-']").id;
    Object.assign(this, { element, props, trigger, terms, form, id, rows: new Map(), value: null, sort: "order", direction: 1, photo: null });
    const button = (text, onclick, more = {}) => make("button", { type: "button", class: "hl-button", text, onclick, ...more });
    this.seconds = make("input", { type: "number", id: `${id}-seconds`, min: form.low, max: form.high, step: "any", value: form.seconds, oninput: () => this.right() });
    this.layers = make("select", { id: `${id}-layers` }, make("option", { value: "every", text: terms.stages }), make("option", { value: "here", text: terms.here }));
    this.go = button(terms.start, null, { type: "submit", class: "hl-button hl-ranking-go" });
    this.halt = button(terms.stop, () => this.trigger("stop", {}), { disabled: true });
    this.four = button(terms.four, () => this.compare(), { disabled: true });
    this.csv = button(terms.csv, () => save(new Blob([csv(this.shown())], { type: "text/csv" }), "ranking.csv"), { disabled: true });
    this.wrong = make("p", { class: "hl-wrong hl-ranking-wrong", id: `${id}-wrong`, role: "alert" });
    this.line = make("p", { class: "hl-line", role: "status" });
    this.bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": "Progress" });
    this.notes = make("div", { class: "hl-ranking-notes" });
    this.heads = Object.fromEntries(COLUMNS.map((name) => [name, this.head(name)]));
    const [order, ...others] = Object.values(this.heads);
    this.body = make("tbody", { onpointerleave: () => this.draw(), onfocusout: () => setTimeout(() => this.draw()) });
    this.table = make("table", {}, make("thead", {}, make("tr", {}, order, make("td", { class: "hl-ranking-picture" }), ...others)), this.body);
    this.box = make("div", { class: "hl-ranking-box", tabindex: 0, role: "region", "aria-label": terms.title }, this.table);
    this.none = make("p", { class: "hl-quiet hl-ranking-none", text: terms.empty });
    this.box.append(this.none);
    this.short = make("p", { class: "hl-quiet hl-ranking-short" });
    this.others = make("details", { class: "hl-ranking-others", hidden: true }, make("summary"), make("ul"));
    element.firstElementChild.replaceChildren(
      make("h2", { class: "hl-heading", text: terms.title }), make("p", { class: "hl-quiet hl-ranking-text", text: terms.text }),
      make("form", { class: "hl-ranking-form", novalidate: true, onsubmit: (event) => { event.preventDefault(); this.start(); } },
        make("label", { for: this.seconds.id }, terms.seconds), this.seconds, make("label", { for: this.layers.id }, terms.layers), this.layers,
        this.go, this.halt, make("span", { class: "hl-ranking-gap" }), this.four, this.csv, this.wrong),
      make("div", { class: "hl-ranking-say" }, this.line, this.bar), this.box, this.short, this.notes, this.others);
    now.heard.add(() => this.mark());
    new ResizeObserver(() => {
      const { clientWidth: wide } = this.box;
      this.box.toggleAttribute("data-medium", wide < 760);
      this.box.toggleAttribute("data-narrow", wide < 520);
    }).observe(this.box);
    this.order("order", 1);
  }

  head(name) {
    const [text, title] = this.terms.columns[name];
    const button = make("button", { type: "button", title, onclick: () => this.order(name) }, text, make("i", { "aria-hidden": "true" }));
    return make("th", { scope: "col", class: `hl-ranking-${name}` }, button);
  }

  /** Sort by a column; by the same one again, from its other end. */
  order(name, direction = this.sort === name ? -this.direction : FIRST[name]) {
    [this.sort, this.direction] = [name, direction];
    for (const [each, head] of Object.entries(this.heads)) {
      if (each === name) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    this.draw(true);
  }

  get wish() {
    return this.seconds.valueAsNumber;
  }

  right() {
    const wrong = !(this.wish >= this.form.low && this.wish <= this.form.high);
    this.wrong.textContent = wrong ? this.terms.wrong : "";
    if (wrong) this.seconds.setAttribute("aria-invalid", "true");
    else this.seconds.removeAttribute("aria-invalid");
    if (wrong) this.seconds.setAttribute("aria-describedby", this.wrong.id);
    else this.seconds.removeAttribute("aria-describedby");
    return !wrong;
  }

  start() {
    if (!this.right()) return void this.seconds.focus();
    this.say({ kind: "busy", parts: [{ text: this.terms.asked }] });
    this.halt.disabled = false;
    this.trigger("submit", { seconds: this.wish, layers: this.layers.value });
  }

  say({ kind, parts, fraction = null }) {
    this.line.replaceChildren(...parts.map((part) => make(part.strong ? "strong" : "span", { text: part.text })));
    this.line.dataset.kind = kind;
    this.line.setAttribute("aria-live", kind === "busy" ? "off" : "polite");   // not five times a second
    this.bar.hidden = fraction === null;
    if (fraction !== null) this.bar.value = fraction;
    this.element.dataset.state = kind;
  }

  async take(value) {
    const since = performance.now();
    if (!value) return;
    this.say(value);
    this.halt.disabled = value.kind !== "busy";
    if (value.rows) {
      this.value = value;
      this.photo = value.crop ? await picture(value.crop.src) : this.photo;
      if (this.value !== value) return;
      this.rest(value);
      this.mark();
    }
    painted(this.element, value.id, since);
  }

  /** What is said below the table. */
  rest({ notes = [], refused = [], steps = [0, 0] }) {
    this.notes.replaceChildren(...notes.map((text) => make("p", { text })));
    this.short.textContent = steps[0] < steps[1] ? this.terms.short.replace("{steps}", steps[0]).replace("{full}", steps[1]) : "";
    this.others.hidden = !refused.length;
    this.others.children[0].textContent = this.terms.refused.replace("{count}", refused.length);
    this.others.children[1].replaceChildren(...refused.map(([name, why]) => make("li", {}, make("strong", { text: name }), ` ${why}`)));
  }

  /** Whether it is a ranking of what the page explains; which row the page shows. */
  mark() {
    const { value } = this, old = Boolean(value && value.subject && now.subject && value.subject !== now.subject);
    this.box.toggleAttribute("data-old", old);
    if (old && value.kind !== "busy") this.say({ kind: "old", parts: [{ text: this.terms.old }] });
    else if (!old && this.line.dataset.kind === "old") this.say(value);
    this.draw();
  }

  /** The rows in the order that is chosen. */
  shown() {
    return sorted((this.value && this.value.rows) || [], this.sort, this.direction);
  }

  /** Rows stay where they are while somebody points at one; new ones then come last. */
  draw(asked = false) {
    const rows = this.shown(), { steps = [0, 0] } = this.value || {}, best = rows.find((row) => row.order === 0);
    const known = new Set(rows.map((row) => row.id));
    for (const [id, row] of this.rows) if (!known.has(id)) { row.element.remove(); this.rows.delete(id); }
    for (const row of rows) {
      if (!this.rows.has(row.id)) this.rows.set(row.id, new Row(this.terms, (each) => this.choose(each)));
      const here = !row.control && row.method === now.method && (!row.layer || row.layer === now.layer);
      this.rows.get(row.id).show(row, { full: steps[1], best: row === best, photo: this.photo, here });
    }
    const held = !asked && (this.body.matches(":hover") || this.body.contains(document.activeElement));
    const elements = rows.map((row) => this.rows.get(row.id).element);
    if (held) for (const each of elements) { if (!each.parentElement) this.body.append(each); }
    else elements.forEach((each, k) => { if (this.body.children[k] !== each) this.body.insertBefore(each, this.body.children[k] || null); });
    this.none.hidden = rows.length > 0;
    this.four.disabled = this.csv.disabled = !rows.some((row) => !row.control);
  }

  /** The row's method, and its layer, on the page. */
  choose({ method, layer }) {
    this.trigger("select", layer ? { method, layer } : { method });
    if (this.id === "hl-ranking") this.front("overlay");
  }

  front(tab) {
    document.querySelector(`#hl-tabs [role=tablist] [data-tab-id=${tab}]`)?.click();
  }

  /** The first rows of the table as it is sorted, in the panels of the comparison. */
  compare() {
    const rows = this.shown().filter((row) => !row.control).slice(0, FOUR);
    mail.put("panels", rows.map(({ method, layer }) => ({ own: layer ? { method, layer } : { method } })));
    this.front("compare");
    document.getElementById("hl-compare")?.scrollIntoView({ block: "start" });
  }
}

export function mount(element, props, trigger, watch) {
  const ranking = new Ranking(element, props, trigger);
  follow(props, watch, ["value"], () => ranking.take(props.value));
}
