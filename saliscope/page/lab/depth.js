// Gradient of the selected class at every layer, drawn along the network.
import { bars } from "../drawing/chart.js";
import { whenAnswered } from "../parts.js";
import { StatusLine } from "../shared/status_line.js";
import { make } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, { terms }, trigger) {
  const root = element.firstElementChild;
  const status = new StatusLine("");
  const verdict = make("div", { class: "hl-finding", hidden: true }, make("p"));
  const chart = make("div", { class: "hl-chart-box" });
  const note = make("p", { class: "hl-quiet", hidden: true, text: `${terms.legend} ${terms.read}` });
  root.replaceChildren(make("p", { class: "hl-quiet", text: terms.text }), status.line, verdict, chart, note);
  let shown = null;
  const draw = () =>
    shown &&
    bars(chart, {
      title: terms.title,
      values: shown.norms,
      names: shown.names,
      marks: shown.stages,
      least: shown.least,
      read: (k) => shown.read[k],
      summary: shown.verdict,
    });
  new ResizeObserver(draw).observe(root);
  whenAnswered(element, (key) => trigger("answered", { key }));
  return (value) => {
    if (!value) return;
    status.say(value.kind, value.parts);
    if (value.names) {
      shown = value;
      verdict.hidden = note.hidden = false;
      verdict.firstElementChild.textContent = value.verdict;
      verdict.dataset.vanished = String(value.vanished);
      draw();
    }
    return value.kind !== "busy";
  };
}
