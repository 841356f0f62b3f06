// A network in training: its form, Start and Stop, charts that grow while it runs, the diagnosis.
import { decades, heat, lines } from "../drawing/chart.js";
import { field, number, say, settled } from "./fields.js";
import { bytes, follow, make, painted } from "../wire.js";

class Training {
  constructor(element, props, trigger) {
    Object.assign(this, { element, props, trigger, terms: props.terms, running: false, value: null });
    const terms = this.terms, changed = () => this.changed();
    const select = (name, pairs) => (this[name] = make("select", { name, onchange: changed }, ...pairs.map(([value, text]) => make("option", { value, text }))));
    const entry = (name, placeholder) => {
      const [min, max] = props.ranges[name];
      return (this[name] = make("input", { name, type: "number", step: "any", min, max, placeholder, oninput: changed }));
    };
    this.presets = make("div", { class: "hl-lab-chips", role: "group", "aria-label": terms.presets }, ...props.presets.map((item) =>
      make("button", { type: "button", "aria-pressed": "false", "data-id": item.id, text: item.title, onclick: () => { this.fill(item); this.start(); } })));
    const network = [field(terms.task, select("task", props.tasks)), field(terms.steps, entry("steps")), field(terms.rate, entry("rate")),
      field(terms.optimiser, select("optimiser", props.optimisers)), field(terms.activation, select("activation", props.activations)), field(terms.depth, entry("depth"))];
    this.activationRow = network[4];
    this.depthRow = network[5];
    const hooks = [field(terms.clip_value, entry("clip_value", terms.off)), field(terms.clip_norm, entry("clip_norm", terms.off)),
      field(terms.noise, entry("noise", terms.off)), field(terms.scale, select("scale", [])), field(terms.factor, entry("factor")), field(terms.freeze, select("freeze", []))];
    this.factorRow = hooks[4];
    this.startButton = make("button", { type: "submit", class: "hl-button hl-main-button", text: terms.start });
    this.stopButton = make("button", { type: "button", class: "hl-button", text: terms.stop, disabled: true, onclick: () => this.stop() });
    this.line = make("p", { class: "hl-line", role: "status" });
    this.bar = make("progress", { class: "hl-progress hl-lab-bar", max: 1, value: 0, "aria-label": terms.steps });
    this.findings = make("div", {});
    this.layer = make("select", { name: "layer", onchange: () => this.heat() });
    this.judgeSoon = settled(() => this.judge());
    this.charts = ["loss", "norms", "updates", "heat"].map(() => make("div", { class: "hl-chart-box" }));
    this.results = make("div", { class: "hl-lab-run", hidden: true },
      make("div", { class: "hl-lab-diagnosis" }, make("h2", { class: "hl-title", text: terms.diagnosis }), this.findings),
      make("div", { class: "hl-charts" }, ...this.charts.slice(0, 3), make("div", {}, this.charts[3], field(terms.heat_layer, this.layer))),
      make("p", { class: "hl-quiet", text: `${terms.heat_text} ${terms.read}` }));
    element.firstElementChild.replaceChildren(make("p", { class: "hl-quiet", text: terms.text }), this.presets,
      make("form", { class: "hl-lab-form", novalidate: true, onsubmit: (event) => { event.preventDefault(); this.start(); } }, ...network,
        make("p", { class: "hl-quiet hl-wide", text: terms.hooks }), ...hooks,
        make("div", { class: "hl-wide hl-lab-actions" }, this.startButton, this.stopButton)),
      make("div", { class: "hl-lab-side" }, make("div", {}, this.line, this.bar), this.results));
    this.busy(false);
    this.fill(props.presets[0]);
    new ResizeObserver(() => { if (this.value && this.value.at) this.draw(); }).observe(this.results);
  }

  /** Put a preset into the form. */
  fill(item) {
    for (const [name, value] of Object.entries(item.settings)) if (!["scale", "freeze"].includes(name)) this[name].value = value ?? "";
    this.layers(item.settings.scale, item.settings.freeze);
    for (const button of this.presets.children) button.setAttribute("aria-pressed", String(button.dataset.id === item.id));
    this.show();
  }

  changed() {
    for (const button of this.presets.children) button.setAttribute("aria-pressed", "false");
    this.layers(this.scale.value, this.freeze.value);
    this.show();
    for (const control of this.element.querySelectorAll("[aria-invalid]")) if (!this.wrong().includes(control.name)) say(control, "");
    this.judgeSoon();
    this.tell();
  }

  /** Offer the network's layers for scaling and freezing. */
  layers(scale, freeze) {
    const depth = Math.min(Math.max(1, Math.round(this.depth.valueAsNumber) || 1), this.props.ranges.depth[1]);
    const names = this.task.value === "mlp" ? [...Array.from({ length: depth }, (_, k) => `hidden${k + 1}`), "output"] : this.props.layers[this.task.value];
    for (const [control, chosen] of [[this.scale, scale], [this.freeze, freeze]]) {
      control.replaceChildren(...["", ...names].map((name) => make("option", { value: name, text: name || this.terms.no_layer })));
      control.value = names.includes(chosen) ? chosen : "";
    }
  }

  show() {
    this.depthRow.hidden = this.task.value !== "mlp";
    this.activationRow.hidden = this.task.value === "line";
    this.factorRow.hidden = !this.scale.value;
  }

  /** The form's values; undefined for a number that cannot be used. What is not shown has its default. */
  read() {
    const data = {}, defaults = this.props.presets[0].settings;
    for (const [name, value] of Object.entries(defaults)) {
      const control = this[name], [min, max] = this.props.ranges[name] || [];
      if (control.type !== "number") data[name] = control.value;
      else if (control.closest("[hidden]")) data[name] = value;
      else data[name] = number(control, { min, max, whole: this.props.whole.includes(name), optional: value === null });
    }
    return data;
  }

  /** The names of the numbers that cannot be used. */
  wrong() {
    return Object.entries(this.read()).filter(([, value]) => value === undefined).map(([name]) => name);
  }

  /** Say at every number what is wrong with it. */
  judge() {
    const wrong = this.wrong();
    for (const name of Object.keys(this.props.ranges)) say(this[name], wrong.includes(name) ? this.props.sentences[name] : "");
    this.tell();
    return wrong;
  }

  start() {
    const [wrong] = this.judge();
    if (wrong) {
      this.tell(true);
      this[wrong].focus();
      return;
    }
    const data = this.read();
    this.halted = false;
    this.asked = JSON.stringify(data);
    this.busy(true);
    this.line.textContent = this.terms.queued;
    this.line.dataset.kind = "busy";
    this.trigger("submit", data);
  }

  /** Stop the run, also one that has not begun: it is stopped as soon as it reports. */
  stop() {
    this.halted = true;
    this.line.textContent = this.terms.stopping;
    this.trigger("select", { stop: true });
  }

  /** The line of the run, and whether its charts still are of the settings in the form. */
  tell(refused = false) {
    if (this.running) return;
    const { terms, failed } = this, shown = Boolean(this.value), invalid = this.wrong().length > 0;
    this.refused = invalid && (refused || this.refused);
    const changed = shown && this.made !== undefined && JSON.stringify(this.read()) !== this.made;
    const said = (this.said || "").replace(/([^.])$/, changed ? "$1." : "$1");
    this.line.textContent = [this.refused ? terms.not_started : said, !changed && !failed ? "" : !shown ? "" : invalid || failed ? terms.last_valid : terms.changed]
      .filter(Boolean).join(" ");
    this.line.dataset.kind = this.refused || failed ? "error" : changed ? "busy" : "done";
    this.results.classList.toggle("hl-old", changed || (shown && failed));
  }

  busy(running) {
    const focused = document.activeElement, held = this.element.contains(focused);
    this.running = running;
    this.bar.style.visibility = running ? "" : "hidden";  // its place stays, so that nothing moves
    this.startButton.disabled = running;
    this.stopButton.disabled = !running;
    for (const button of this.presets.children) button.disabled = running;
    if (!held || !focused.disabled) return;             // a disabled button would lose the focus to the page
    const next = running ? this.stopButton : this.began || this.startButton;
    if (running) this.began = focused;
    next.focus({ preventScroll: true });
  }

  render() {
    const since = performance.now(), value = this.props.value;
    if (!value) return;
    this.busy(value.state === "running");
    this.said = value.line;
    this.failed = value.state === "error";
    if (value.at) this.made = this.asked;
    this.line.textContent = this.halted ? this.terms.stopping : value.line;
    this.line.dataset.kind = "busy";
    if (this.halted && this.running) this.trigger("select", { stop: true });
    this.bar.value = value.fraction || 0;
    if (value.at) {
      const fresh = !this.value || this.value.layers.join() !== value.layers.join();
      this.value = value;
      this.results.hidden = false;
      if (fresh) {
        this.layer.replaceChildren(...value.layers.map((name) => make("option", { value: name, text: name })));
        this.layer.value = value.layers.find((name) => value.norms[name].some((norm) => norm)) || value.layers[0];
      }
      const sentences = value.findings.length ? value.findings : [this.terms.healthy];
      this.findings.replaceChildren(...sentences.map((text) => make("div", { class: "hl-finding" }, make("p", { text }))));
      this.draw();
    }
    this.tell();
    this.element.closest("#hl-training").dataset.state = value.state;
    painted(this.element, value.id, since);
  }

  draw() {
    const { at, steps, loss, norms, updates } = this.value, terms = this.terms, shared = { at, last: steps - 1, unit: terms.step };
    const log = decades(loss);
    lines(this.charts[0], { ...shared, title: log ? terms.loss_log : terms.loss, series: { [terms.loss]: loss }, log });
    lines(this.charts[1], { ...shared, title: terms.norms, series: norms, log: true });
    lines(this.charts[2], { ...shared, title: terms.updates, series: updates, log: true });
    this.heat();
  }

  heat() {
    const { at, steps, heat: sheets } = this.value, sheet = sheets[this.layer.value];
    if (!sheet) return;
    heat(this.charts[3], { at, last: steps - 1, unit: this.terms.step, title: this.terms.heat, counts: bytes(sheet.counts), bins: sheet.bins, low: sheet.low, high: sheet.high });
  }
}

export function mount(element, props, trigger, watch) {
  const training = new Training(element, props, trigger);
  follow(props, watch, ["value"], () => training.render());
}
