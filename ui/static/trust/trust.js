// The trust strip: how far the map above can be believed. Asks for the verdict once the map is painted, of quick methods
// by itself; none is asked for twice. The curves show the photograph at the step under the pointer.
import { keep } from "../page/address.js";
import { curve } from "./chart.js";
import { Steps } from "./steps.js";
import { follow, make, painted } from "../wire.js";

const ROWS = ["controls", "class", "weights"], METRICS = ["deletion", "insertion"];
const MARKS = { good: "✓", mixed: "≈", bad: "✗", unknown: "·" };
const KEPT = 100;

const filled = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
const percent = (share) => `${Math.round(100 * share)}%`;

class Strip {
  constructor(element, props, trigger) {
    Object.assign(this, { element, props, trigger, terms: props.terms, known: new Map(), wanted: null, asked: null, busy: "" });
    const { terms } = this;
    this.steps = new Steps(props.of);
    this.texts = Object.fromEntries(ROWS.map((name) => [name, make("dd", {})]));
    this.marks = Object.fromEntries(ROWS.map((name) => [name, make("i", { "aria-hidden": "true" })]));
    this.list = make("dl", { class: "hl-trust-rows" }, ...ROWS.map((name) =>
      make("div", {}, make("dt", {}, this.marks[name], terms.rows[name]), this.texts[name])));
    this.line = make("p", { class: "hl-quiet", role: "status" });
    this.ask = make("button", { type: "button", class: "hl-button", text: terms.ask, onclick: () => this.begin("focus") });
    this.draw = make("button", { type: "button", class: "hl-button", text: terms.weights, onclick: () => this.begin("submit") });
    this.stop = make("button", { type: "button", class: "hl-button", text: terms.stop, onclick: () => { this.stop.disabled = true; trigger("stop", {}); } });
    this.hosts = Object.fromEntries(METRICS.map((name) => [name, make("div", { class: "hl-trust-curve" })]));
    this.curves = make("details", { class: "hl-trust-curves" }, make("summary", { text: terms.curves }),
      make("div", { class: "hl-trust-pair" }, ...METRICS.map((name) => this.hosts[name]), this.steps.small),
      make("p", { class: "hl-quiet", text: terms.hint }));
    const changed = keep(["curves"], () => (this.curves.open ? { curves: "1" } : {}), ({ curves }) => { this.curves.open = curves === "1"; });
    this.curves.addEventListener("toggle", () => { this.plot(); changed(); });
    element.firstElementChild.replaceChildren(
      make("div", { class: "hl-trust-head" }, make("h2", { class: "hl-title", text: terms.title }), this.line, this.ask, this.draw, this.stop),
      this.list, this.curves);
    new ResizeObserver(() => this.plot()).observe(this.curves);
    new IntersectionObserver(() => this.think()).observe(element);
    this.show();
  }

  /** What the server says. */
  take(value) {
    if (!value) return;
    if ("quick" in value) {
      this.wanted = value;
      this.failed = null;
      this.steps.leave();
      if (this.asked !== value.key) this.busy = this.asked = "";
    } else if (!this.wanted) {
      this.wanted = { key: value.key, why: "", quick: false };       // the component was mounted after the answer came
    }
    const { key } = value, known = this.known.get(key);
    if (value.verdict) this.remember(key, value.verdict);
    else if (value.weights && known) this.remember(key, { ...known, rows: { ...known.rows, weights: value.weights } });
    else if (value.failed) this.failed = { key, text: value.failed };
    if (key === this.asked && (value.weights || value.failed || (value.verdict && !value.more))) this.asked = this.busy = "";
    if (key === this.asked && "fraction" in value) this.share = value.fraction;
    this.show();
    this.think();
  }

  remember(key, verdict) {
    this.known.delete(key);
    this.known.set(key, verdict);
    if (this.known.size > KEPT) this.known.delete(this.known.keys().next().value);
  }

  /** Ask for the verdict of a quick method. */
  think() {
    const { wanted } = this;
    if (!wanted?.quick || !wanted.key || this.asked === wanted.key || this.known.has(wanted.key)) return;
    if (this.failed?.key === wanted.key || !this.element.checkVisibility()) return;
    this.begin("focus");
  }

  begin(event) {
    Object.assign(this, { asked: this.wanted.key, busy: event, share: 0, failed: null });
    this.stop.disabled = false;
    this.show();
    this.trigger(event, { key: this.asked });
  }

  show() {
    const { terms, wanted, texts, marks } = this, known = wanted && this.known.get(wanted.key);
    const failed = this.failed && wanted && this.failed.key === wanted.key ? this.failed.text : "", { busy } = this;
    const root = this.element.firstElementChild;
    root.dataset.state = busy ? "asked" : known ? "known" : failed || wanted?.why ? "none" : wanted?.key ? "offer" : "empty";
    const share = { percent: percent(this.share || 0) };
    this.line.textContent = busy === "submit" ? filled(terms.drawing, share) : busy ? (known ? filled(terms.drawing, share) : filled(terms.working, share))
      : failed || (known ? "" : !wanted?.key ? terms.waiting : wanted.why || terms.offer);
    this.ask.hidden = Boolean(busy || known || !wanted?.key || wanted.why);
    this.draw.hidden = Boolean(busy || !known || known.rows.weights.here);
    this.stop.hidden = !busy;
    for (const name of ROWS) {
      const row = known?.rows[name] || { text: "", mark: "unknown" };
      texts[name].textContent = row.text;
      marks[name].textContent = row.text ? MARKS[row.mark] : "";
      marks[name].parentElement.parentElement.dataset.mark = row.text ? row.mark : "";
    }
    this.list.classList.toggle("hl-unknown", !known);
    this.curves.classList.toggle("hl-unknown", !known);
    if (this.shown !== known) {
      this.shown = known;
      this.steps.use(wanted?.key, known);
      this.plot();
    }
    painted(this.element, wanted?.id, performance.now());
  }

  plot() {
    const { shown: known, terms } = this;
    if (!this.curves.open || !known) return;
    for (const name of METRICS) {
      const verb = terms.verbs[name], data = known.curves[name];
      curve(this.hosts[name], {
        ...data, unit: known.unit, own: data.own, labels: { own: terms.own, ...terms.controls },
        title: name, better: terms.better[name], axis: filled(terms.axis, { verb }),
        read: (k) => filled(terms.read, { share: percent(k / (data.own.length - 1)), verb, unit: known.unit, own: number(data.own[k]),
          ...Object.fromEntries(Object.entries(data.controls).map(([control, values]) => [control, number(values[k])])) }),
        look: (k) => (k === null ? this.steps.leave() : this.steps.show(name, k, filled(terms.seen, { share: percent(k / (data.own.length - 1)), verb }), this.hosts[name])),
      });
    }
  }
}

const number = (value) => (Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2));

export function mount(element, props, trigger, watch) {
  const strip = new Strip(element, props, trigger);
  follow(props, watch, ["value"], () => strip.take(props.value));
}
