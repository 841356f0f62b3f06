// Batch page: choose images, start a report or an index of channels, show progress, stop, and show the report in an
// iframe, where it can be saved.
import { FileChooser } from "./files.js";
import { state, subscribe, update } from "../store.js";
import { selectTab } from "../tabs.js";
import { Component, mountClass } from "../parts.js";
import { StatusLine } from "../shared/status_line.js";
import { fill, make, downloadFile, makeButton } from "../wire.js";

const CHANNELS = "features"; // the tab that shows the index

class Batch extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    const { terms } = props;
    this.report = "";
    this.status = new StatusLine(terms.progress);
    // The report is a separate page: it runs its own script and cannot access this one.
    const sandbox = "allow-scripts";
    this.frame = make("iframe", { class: "hl-many-frame", title: terms.frame, sandbox, hidden: true });
    const onMessage = (text) => {
      if (text) this.showStatus({ kind: "error", parts: [{ text }] });
      // keep Stop enabled during a run
      else if (element.dataset.state === "error") this.showStatus({ kind: "idle", parts: [] });
    };
    this.files = new FileChooser(terms, props.limits, onMessage, () => this.tryExamples(props.examples));
    const startButton = makeButton(terms.start, () => this.start("submit"), { class: "hl-button hl-many-go" });
    const indexButton = makeButton(terms.index, () => this.start("index"));
    this.openButton = makeButton(terms.open, () => selectTab(CHANNELS), { hidden: true });
    this.stopButton = makeButton(terms.stop, () => trigger("stop", {}), {
      disabled: true,
      "aria-label": terms.stop_name,
    });
    this.saveButton = makeButton(
      terms.save,
      () => downloadFile(new Blob([this.report], { type: "text/html" }), "report.html"),
      { disabled: true },
    );
    this.root.replaceChildren(
      this.files.box,
      make("div", { class: "hl-many-tools" }, startButton, indexButton, this.stopButton, this.saveButton),
      make("div", { class: "hl-many-say" }, this.status.line, this.status.bar, this.openButton),
      this.frame,
    );
    subscribe(["indexed", "question"], () => this.checkModel());
  }

  /** Start a job with the files: "submit" for the report, "index" for the channels. */
  async start(job) {
    this.showStatus({ kind: "busy", parts: [{ text: this.terms.asked }] });
    this.trigger(job, { files: await this.files.upload() });
  }

  /** Remove the index if it is of another network than that of the page. */
  checkModel() {
    const { indexed, question } = state;
    this.openButton.hidden = !indexed?.model;
    if (!indexed?.model || !question || question.names.model === indexed.model) return;
    this.trigger("forget");
    const gone = fill(this.terms.gone, { title: indexed.title });
    update({ indexed: { gone } });
    if (this.element.dataset.state !== "busy") this.showStatus({ kind: "idle", parts: [{ text: gone }] });
  }

  /** Explain the example images. */
  async tryExamples(addresses) {
    await this.files.fetch(addresses);
    if (this.files.images.length) this.start("submit");
  }

  showStatus({ kind, parts, fraction = null }) {
    this.status.say(kind, parts, fraction);
    this.status.line.setAttribute("aria-live", kind === "busy" ? "off" : "polite");
    this.element.dataset.state = kind;
    this.stopButton.disabled = kind !== "busy";
    this.frame.toggleAttribute("data-old", kind === "busy");
  }

  receive(value) {
    if (!value) return;
    this.showStatus(value);
    if (value.report) {
      this.report = this.frame.srcdoc = value.report;
      this.frame.hidden = this.saveButton.disabled = false;
    }
  }
}

export const mount = mountClass(Batch);
