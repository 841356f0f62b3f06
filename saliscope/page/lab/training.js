// Training of a small network: the form, Start and Stop, charts that grow during the run, and the diagnosis.
import { decades, heat, lines } from "../drawing/chart.js";
import { debounce, field, readNumber, showMessage, makeChips } from "./fields.js";
import { Component, markDrawn, mountClass } from "../parts.js";
import { makeForm, makeOptions, makeSelect } from "../shared/elements.js";
import { StatusLine } from "../shared/status_line.js";
import { bytes, make, makeButton } from "../wire.js";

class Training extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.running = false;
    this.says = ""; // the last line of the server
    this.value = null;
    /** @type {Record<string, any>} */
    this.fields = {};
    this.presets = makeChips(this.terms.presets, props.presets, (item) => {
      this.fill(item);
      this.start();
    });
    this.status = new StatusLine(this.terms.steps);
    this.status.bar.classList.add("hl-lab-bar");
    this.validateSoon = debounce(() => this.validate());
    this.root.replaceChildren(
      make("p", { class: "hl-quiet", text: this.terms.text }),
      this.presets.root,
      this.buildForm(),
      make("div", { class: "hl-lab-side" }, make("div", {}, this.status.line, this.status.bar), this.buildResults()),
    );
    this.setRunning(false);
    this.fill(props.presets[0]);
    this.showExample();
    new ResizeObserver(() => {
      if (this.value && this.value.at) this.draw();
    }).observe(this.results);
  }

  /** Create a labeled list of choices. */
  select(name, pairs) {
    this.fields[name] = makeSelect({ name, onchange: () => this.changed() }, pairs);
    return field(this.terms[name], this.fields[name]);
  }

  /** Create a labeled number field. */
  entry(name, placeholder) {
    const [min, max] = this.props.ranges[name],
      oninput = () => this.changed();
    this.fields[name] = make("input", { name, type: "number", step: "any", min, max, placeholder, oninput });
    return field(this.terms[name], this.fields[name]);
  }

  buildForm() {
    const { terms, props } = this;
    this.activationRow = this.select("activation", props.activations);
    this.depthRow = this.entry("depth");
    this.factorRow = this.entry("factor");
    this.startButton = make("button", { type: "submit", class: "hl-button hl-main-button", text: terms.start });
    this.stopButton = makeButton(terms.stop, () => this.stop(), { "aria-label": terms.stop_name, disabled: true });
    return makeForm(
      { class: "hl-lab-form" },
      () => this.start(),
      this.select("task", props.tasks),
      this.entry("steps"),
      this.entry("rate"),
      this.select("optimizer", props.optimizers),
      this.activationRow,
      this.depthRow,
      make("p", { class: "hl-quiet hl-wide", text: terms.hooks }),
      this.entry("clip_value", terms.off),
      this.entry("clip_norm", terms.off),
      this.entry("noise", terms.off),
      this.select("scale", []),
      this.factorRow,
      this.select("freeze", []),
      make("div", { class: "hl-wide hl-lab-actions" }, this.startButton, this.stopButton),
    );
  }

  buildResults() {
    const { terms } = this;
    this.findings = make("div", {});
    this.layer = make("select", { name: "layer", onchange: () => this.drawHeat() });
    this.charts = ["loss", "norms", "updates", "heat"].map(() => make("div", { class: "hl-chart-box" }));
    const title = make("h2", { class: "hl-title", text: terms.diagnosis });
    this.results = make(
      "div",
      { class: "hl-lab-run", hidden: true },
      make("div", { class: "hl-lab-diagnosis" }, title, this.findings),
      make(
        "div",
        { class: "hl-charts" },
        ...this.charts.slice(0, 3),
        make("div", {}, this.charts[3], field(terms.heat_layer, this.layer)),
      ),
      make("p", { class: "hl-quiet", text: `${terms.heat_text} ${terms.read}` }),
    );
    return this.results;
  }

  /** Fill the form with a preset. */
  fill(item) {
    for (const [name, value] of Object.entries(item.settings))
      if (!["scale", "freeze"].includes(name)) this.fields[name].value = value ?? "";
    this.listLayers(item.settings.scale, item.settings.freeze);
    this.presets.mark(item.id);
    this.showFields();
  }

  changed() {
    this.presets.mark(null);
    this.listLayers(this.fields.scale.value, this.fields.freeze.value);
    this.showFields();
    for (const control of this.element.querySelectorAll("[aria-invalid]"))
      if (!this.wrong().includes(control.name)) showMessage(control, "");
    this.validateSoon();
    this.updateStatus();
  }

  /** List the network's layers for scaling and freezing. */
  listLayers(scale, freeze) {
    const depth = Math.min(Math.max(1, Math.round(this.fields.depth.valueAsNumber) || 1), this.props.ranges.depth[1]);
    const names =
      this.fields.task.value === "mlp"
        ? [...Array.from({ length: depth }, (_, k) => `hidden${k + 1}`), "output"]
        : this.props.layers[this.fields.task.value];
    for (const [name, chosen] of Object.entries({ scale, freeze })) {
      const control = this.fields[name];
      control.replaceChildren(...makeOptions(["", ...names].map((name) => [name, name || this.terms.no_layer])));
      control.value = names.includes(chosen) ? chosen : "";
    }
  }

  showFields() {
    this.depthRow.hidden = this.fields.task.value !== "mlp";
    this.activationRow.hidden = this.fields.task.value === "line";
    this.factorRow.hidden = !this.fields.scale.value;
  }

  /** Return the form's values; undefined for invalid numbers. Hidden fields have their defaults. */
  read() {
    const data = {},
      defaults = this.props.presets[0].settings;
    for (const [name, value] of Object.entries(defaults)) {
      const control = this.fields[name],
        [min, max] = this.props.ranges[name] || [],
        range = { min, max, whole: this.props.whole.includes(name), optional: value === null };
      if (control.type !== "number") data[name] = control.value;
      else if (control.closest("[hidden]")) data[name] = value;
      else data[name] = readNumber(control, range);
    }
    return data;
  }

  /** Return the names of the invalid numbers. */
  wrong() {
    return Object.entries(this.read())
      .filter(([, value]) => value === undefined)
      .map(([name]) => name);
  }

  /** Show a validation message at every invalid number. */
  validate() {
    const wrong = this.wrong();
    for (const name of Object.keys(this.props.ranges))
      showMessage(this.fields[name], wrong.includes(name) ? this.props.sentences[name] : "");
    this.updateStatus();
    return wrong;
  }

  start() {
    const [wrong] = this.validate();
    if (wrong) {
      this.updateStatus(true);
      this.fields[wrong].focus();
      return;
    }
    const data = this.read();
    this.stopped = false;
    this.submitted = JSON.stringify(data);
    this.setRunning(true);
    this.status.say("busy", this.terms.queued, 0);
    this.trigger("submit", data);
  }

  /** Stop the run; a run that has not started yet is stopped at its first report. */
  stop() {
    this.stopped = true;
    this.status.say("busy", this.terms.stopping, this.status.bar.value);
    this.trigger("stop");
  }

  /** Update the status, and mark the charts as outdated if the form has changed. */
  updateStatus(refused = false) {
    if (this.running) return;
    const { terms, failed } = this,
      shown = Boolean(this.value),
      invalid = this.wrong().length > 0;
    this.refused = invalid && (refused || this.refused);
    const changed = shown && this.drawnSettings !== undefined && JSON.stringify(this.read()) !== this.drawnSettings;
    const said = this.refused ? terms.not_started : this.says.replace(/([^.])$/, changed ? "$1." : "$1");
    const more = shown && (changed || failed) ? (invalid || failed ? terms.last_valid : terms.changed) : "";
    this.status.say(
      this.refused || failed ? "error" : changed ? "busy" : "done",
      [said, more].filter(Boolean).join(" "),
    );
    this.results.classList.toggle("hl-old", changed || (shown && failed));
  }

  setRunning(running) {
    const focused = document.activeElement,
      held = this.element.contains(focused);
    this.running = running;
    this.startButton.disabled = running;
    this.stopButton.disabled = !running;
    for (const button of this.presets.root.querySelectorAll("button")) button.disabled = running;
    if (!held || !focused.matches(":disabled")) return; // a disabled button would lose the focus to the page
    const next = running ? this.stopButton : this.startedFrom || this.startButton;
    if (running) this.startedFrom = focused;
    next.focus({ preventScroll: true });
  }

  /** Show the stored run of the first preset until the user starts one. */
  async showExample() {
    const answer = await fetch(new URL("hl/lab/example.json", document.baseURI)),
      value = answer.ok ? await answer.json() : null;
    if (this.value || this.running || this.props.value) return;
    this.submitted = JSON.stringify(this.read());
    this.receive(value);
    if (value) markDrawn(this.element, value.id, performance.now());
  }

  receive(value) {
    if (!value) return;
    this.setRunning(value.state === "running");
    this.says = value.line;
    this.failed = value.state === "error";
    if (value.at) this.drawnSettings = this.submitted;
    this.status.say("busy", this.stopped ? this.terms.stopping : value.line, value.fraction || 0);
    if (this.stopped && this.running) this.trigger("stop");
    if (value.at) {
      const fresh = !this.value || this.value.layers.join() !== value.layers.join();
      this.value = value;
      this.results.hidden = false;
      if (fresh) {
        this.layer.replaceChildren(...makeOptions(value.layers.map((name) => [name, name])));
        this.layer.value = value.layers.find((name) => value.norms[name].some((norm) => norm)) || value.layers[0];
      }
      const sentences = value.findings.length ? value.findings : [this.terms.healthy];
      this.findings.replaceChildren(
        ...sentences.map((text) => make("div", { class: "hl-finding" }, make("p", { text }))),
      );
      this.draw();
    }
    this.updateStatus();
    this.element.closest("#hl-training").dataset.state = value.state;
  }

  draw() {
    const { at, steps, loss, norms, updates } = this.value,
      terms = this.terms,
      shared = { at, last: steps - 1, unit: terms.step };
    const log = decades(loss);
    lines(this.charts[0], { ...shared, title: log ? terms.loss_log : terms.loss, series: { [terms.loss]: loss }, log });
    lines(this.charts[1], { ...shared, title: terms.norms, series: norms, log: true });
    lines(this.charts[2], { ...shared, title: terms.updates, series: updates, log: true });
    this.drawHeat();
  }

  drawHeat() {
    const { at, steps, heat: sheets } = this.value,
      sheet = sheets[this.layer.value];
    if (!sheet) return;
    heat(this.charts[3], {
      at,
      last: steps - 1,
      unit: this.terms.step,
      title: this.terms.heat,
      counts: bytes(sheet.counts),
      bins: sheet.bins,
      low: sheet.low,
      high: sheet.high,
    });
  }
}

export const mount = mountClass(Training);
