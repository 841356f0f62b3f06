// The faithfulness checks below the map. Requests them once the map is drawn, automatically for fast methods, and only
// once per map. The curves show the image at the step under the pointer.
import { bindParameters } from "../shared/address.js";
import { curve } from "./chart.js";
import { Steps } from "./steps.js";
import { update } from "../store.js";
import { explain } from "../text/terms.js";
import { Component, markDrawn, mountClass } from "../parts.js";
import { fill, make, makeButton } from "../wire.js";

const ROWS = ["controls", "class", "weights"],
  METRICS = ["deletion", "insertion"];
const MARKS = { good: "✓", mixed: "≈", bad: "✗", unknown: "·" };
const MAX_RESULTS = 100;

const percent = (share) => `${Math.round(100 * share)}%`;

class Strip extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.known = new Map();
    this.wanted = null;
    this.requested = null;
    this.busy = "";
    const { terms } = this;
    this.steps = new Steps(props.of);
    this.texts = Object.fromEntries(ROWS.map((name) => [name, make("dd", {})]));
    this.marks = Object.fromEntries(ROWS.map((name) => [name, make("i", { "aria-hidden": "true" })]));
    this.list = make(
      "dl",
      { class: "hl-trust-rows" },
      ...ROWS.map((name) => make("div", {}, make("dt", {}, this.marks[name], terms.rows[name]), this.texts[name])),
    );
    this.sign = make("i", { "aria-hidden": "true" });
    this.sentence = make("span", {});
    this.verdict = make("p", { class: "hl-trust-verdict" }, this.sign, this.sentence);
    this.line = make("p", { class: "hl-quiet", role: "status" });
    const answer = make("div", { class: "hl-trust-answer" }, this.verdict, this.line);
    this.root.replaceChildren(this.buildHead(), answer, this.buildCurves());
    explain(this.root);
    new ResizeObserver(() => this.plot()).observe(this.curves);
    new IntersectionObserver(() => this.autoStart()).observe(element);
    this.show();
  }

  buildHead() {
    const { terms } = this;
    this.checkButton = makeButton(terms.ask, () => this.start("focus"));
    this.randomizeButton = makeButton(terms.weights, () => this.start("submit"));
    this.stopButton = makeButton(terms.stop, () => {
      this.stopButton.disabled = true;
      this.trigger("stop", {});
    });
    this.stopButton.setAttribute("aria-label", terms.stop_name);
    const title = make("h2", { class: "hl-title", text: terms.title });
    const buttons = [this.checkButton, this.randomizeButton, this.stopButton];
    return make("div", { class: "hl-trust-head" }, title, ...buttons);
  }

  buildCurves() {
    const { terms } = this;
    this.hosts = Object.fromEntries(METRICS.map((name) => [name, make("div", { class: "hl-trust-curve" })]));
    this.curves = make(
      "details",
      { class: "hl-trust-curves" },
      make("summary", { text: terms.details }),
      this.list,
      make("div", { class: "hl-trust-pair" }, ...METRICS.map((name) => this.hosts[name]), this.steps.small),
      make("p", { class: "hl-quiet", text: terms.hint }),
    );
    const changed = bindParameters(
      ["curves"],
      () => (this.curves.open ? { curves: "1" } : {}),
      ({ curves }) => {
        this.curves.open = curves === "1";
      },
    );
    this.curves.addEventListener("toggle", () => {
      this.plot();
      changed();
    });
    return this.curves;
  }

  /** Handle a message from the server. */
  receive(value) {
    if (value) this.handle(value);
    return false; // `show` marks it
  }

  handle(value) {
    if ("quick" in value) {
      this.wanted = value;
      this.failed = null;
      this.steps.leave();
      if (this.requested !== value.key) this.busy = this.requested = "";
    } else if (!this.wanted) {
      this.wanted = { key: value.key, why: "", quick: false }; // the part started after the answer arrived
    }
    const { key } = value,
      known = this.known.get(key);
    if (value.verdict) this.store(key, value.verdict);
    else if (value.weights && known) this.store(key, { ...known, rows: { ...known.rows, weights: value.weights } });
    else if (value.failed) this.failed = { key, text: value.failed };
    if (key === this.requested && (value.weights || value.failed || (value.verdict && !value.more)))
      this.requested = this.busy = "";
    if (key === this.requested && "fraction" in value) this.share = value.fraction;
    this.show();
    this.autoStart();
  }

  store(key, verdict) {
    this.known.delete(key);
    this.known.set(key, verdict);
    if (this.known.size > MAX_RESULTS) this.known.delete(this.known.keys().next().value);
  }

  /** Request the checks of a fast method. */
  autoStart() {
    const { wanted } = this;
    if (!wanted?.quick || !wanted.key || this.requested === wanted.key || this.known.has(wanted.key)) return;
    if (this.failed?.key === wanted.key || !this.element.checkVisibility()) return;
    this.start("focus");
  }

  start(event) {
    Object.assign(this, { requested: this.wanted.key, busy: event, share: 0, failed: null });
    this.stopButton.disabled = false;
    this.show();
    this.trigger(event, { key: this.requested });
  }

  /** Return the status: progress, an error, or what the buttons do. */
  status(known, failed) {
    const { terms, wanted, busy } = this;
    if (busy) {
      const text = busy === "submit" || known ? terms.drawing : terms.working;
      return fill(text, { percent: percent(this.share || 0) });
    }
    if (failed || known) return failed;
    return wanted?.key ? wanted.why || terms.offer : terms.waiting;
  }

  show() {
    const { wanted, texts, marks, busy } = this,
      known = wanted && this.known.get(wanted.key);
    const failed = this.failed && wanted && this.failed.key === wanted.key ? this.failed.text : "";
    const idle = failed || wanted?.why ? "none" : wanted?.key ? "offer" : "empty";
    this.root.dataset.state = busy ? "asked" : known ? "known" : idle;
    this.line.textContent = this.status(known, failed);
    this.checkButton.hidden = Boolean(busy || known || !wanted?.key || wanted.why);
    this.randomizeButton.hidden = Boolean(busy || !known || known.rows.weights.here);
    this.stopButton.hidden = !busy;
    for (const name of ROWS) {
      const row = known?.rows[name] || { text: "", mark: "unknown" };
      texts[name].textContent = row.text;
      marks[name].textContent = row.text ? MARKS[row.mark] : "";
      marks[name].parentElement.parentElement.dataset.mark = row.text ? row.mark : "";
    }
    const { sentence = "", mark = "" } = known || wanted || {};
    this.sentence.textContent = sentence;
    this.sign.textContent = sentence ? MARKS[mark] : "";
    this.verdict.dataset.mark = mark;
    this.curves.classList.toggle("hl-unknown", !known);
    if (this.shown !== known) {
      this.shown = known;
      this.steps.use(wanted?.key, known);
      if (known) update({ checked: { key: wanted.key, sentence: known.sentence, headline: known.headline } });
      this.plot();
    }
    markDrawn(this.element, wanted?.id, performance.now());
  }

  plot() {
    const { shown: known } = this;
    if (this.curves.open && known) for (const name of METRICS) this.plotCurve(name, known.unit, known.curves[name]);
  }

  plotCurve(name, unit, data) {
    const { terms } = this,
      verb = terms.verbs[name],
      host = this.hosts[name],
      axis = fill(terms.axis, { verb }),
      title = terms.titles[name];
    const share = (k) => percent(k / (data.own.length - 1));
    const read = (k) => {
      const controls = Object.entries(data.controls).map(([control, values]) => [control, number(values[k])]);
      const values = { share: share(k), verb, unit, own: number(data.own[k]), ...Object.fromEntries(controls) };
      return fill(terms.read, values);
    };
    curve(host, {
      own: data.own,
      controls: data.controls,
      band: data.band,
      labels: { own: terms.own, ...terms.controls },
      unit,
      axis,
      title,
      area: fill(terms.area, { area: data.area, better: terms.better[name] }),
      areas: Object.entries(data.areas)
        .map(([control, area]) => `${terms.controls[control]} ${area}`)
        .join(", "),
      description: fill(terms.plot, { title, unit, axis }),
      read,
      onStep: (k) =>
        k === null ? this.steps.leave() : this.steps.show(name, k, fill(terms.seen, { share: share(k), verb }), host),
    });
  }
}

const number = (value) => (Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2));

export const mount = mountClass(Strip);
