// How the value of a clicked cell is computed: operations, patch and kernel, largest products, and the strongest path.
import { colorImage, colorRange, heat, kernelList } from "./heat.js";
import { state, subscribe } from "../store.js";
import { Component } from "../parts.js";
import { makeLabel, makeRow, makeTable } from "../shared/elements.js";
import { Job } from "../shared/job.js";
import { floats, make } from "../wire.js";

const LARGE = 20; // CSS pixels of a square of a color image

const rows = (lines) => lines.map(([name, ...texts]) => makeRow(name, texts));

/** @type {Panel} the one of the page */
let panel = null;

/**
 * Show how the value of a cell of a channel is computed.
 * @param {number} channel
 * @param {number[]} cell row and column
 */
export const traceCell = (channel, cell) => panel.request(channel, cell);

class Panel extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.title = make("h2", { class: "hl-title", text: this.terms.title });
    this.job = new Job(trigger, this.terms);
    this.body = make("div", { class: "hl-arithmetic-body" });
    this.root.replaceChildren(this.title, this.job.status.line, this.body);
    this.root.hidden = true;
    subscribe(["channels", "question"], () => this.mark());
  }

  request(channel, cell) {
    this.wanted = [channel, cell];
    this.root.hidden = false;
    this.asked = state.question?.id;
    this.job.ask("submit", { channel, cell });
    this.body.dataset.old = "true";
  }

  /** Hide the panel of another channel, and mark one of former settings. */
  mark() {
    if (!this.wanted) return;
    const other = this.wanted[0] !== state.channels.number;
    if (other) {
      this.root.hidden = true;
      this.wanted = null;
    } else this.root.dataset.old = String(this.asked !== state.question?.id);
  }

  receive(value) {
    if (this.wanted && this.job.take(value) === "done") this.show(value);
  }

  show(value) {
    const { terms } = this;
    this.job.status.say("done", value.text);
    this.body.dataset.old = "false";
    this.mark();
    const steps = make("table", { class: "hl-arithmetic-steps" }, make("tbody", {}, ...rows(value.rows))),
      products = makeTable(terms.columns, rows(value.products), { class: "hl-arithmetic-products" }),
      path = value.path.map((text) => make("li", { text }));
    this.body.replaceChildren(
      make("div", {}, steps, make("p", { class: "hl-quiet", text: value.check })),
      make("div", {}, ...this.pictures(value)),
      make("div", {}, make("h3", { text: terms.largest }), products),
      make("div", {}, make("h3", { text: terms.path }), make("ol", {}, ...path)),
    );
  }

  /** The patch, the kernel and the products of one input channel; all colors if the image is the input. */
  pictures({ patch, kernels }) {
    if (!patch) return [];
    const { terms } = this,
      [count, , width] = patch.shape,
      [inputs, weights, inside] = [patch.inputs, patch.weights, patch.inside].map(floats),
      size = inputs.length / count;
    const shown = make("div", { class: "hl-arithmetic-figures" });
    const draw = (channel) => {
      const part = (values) => values.subarray((channel - patch.first) * size, (channel - patch.first + 1) * size),
        products = part(inputs).map((value, k) => value * part(weights)[k]);
      shown.replaceChildren(
        heat(part(inputs), width, terms.patch, part(inside)),
        heat(part(weights), width, terms.kernel),
        heat(products, width, terms.products, part(inside)),
      );
    };
    draw(patch.strongest);
    return [...this.chooser(patch, count, draw), shown, ...this.colors(inputs, weights, width, kernels)];
  }

  chooser(patch, count, draw) {
    if (count < 2) return [];
    const last = patch.first + count - 1;
    const input = make("input", { type: "number", min: patch.first, max: last, step: 1, value: patch.strongest });
    input.addEventListener("change", () => {
      const wanted = Math.round(input.valueAsNumber);
      input.value = Number.isFinite(wanted) ? Math.min(last, Math.max(patch.first, wanted)) : patch.strongest;
      draw(Number(input.value));
    });
    return [makeLabel(this.terms.channel, input, { class: "hl-arithmetic-channel" })];
  }

  colors(inputs, weights, width, kernels) {
    if (!kernels) return [];
    const { terms } = this;
    const figure = (text, ...pictures) =>
      make("figure", {}, make("figcaption", { text }), make("div", { class: "hl-arithmetic-kernels" }, ...pictures));
    const cell = Math.max(4, Math.min(LARGE, Math.floor(120 / width)));
    return [
      make(
        "div",
        { class: "hl-arithmetic-figures" },
        figure(terms.color_patch, colorImage(inputs, width, cell, colorRange(inputs, false))),
        figure(terms.color_kernel, colorImage(weights, width, cell, colorRange(weights, true))),
      ),
      figure(terms.kernels, ...kernelList(floats(kernels.values), kernels.shape, kernels.chosen)),
    ];
  }
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  panel = new Panel(element, props, trigger);
  return (value) => panel.receive(value);
}
