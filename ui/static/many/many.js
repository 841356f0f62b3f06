// Many pictures: what to explain, start, progress, Stop, and the report in a frame of its own, to look at and to save.
import { chooser } from "./files.js";
import { follow, make, painted, save } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const { terms } = props, root = element.firstElementChild;
  const button = (text, onclick, more = {}) => make("button", { type: "button", class: "hl-button", text, onclick, ...more });
  const line = make("p", { class: "hl-line", role: "status" });
  const bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": "Progress" });
  // The report is a page by itself: it runs its own script, and reaches nothing of this one.
  const frame = make("iframe", { class: "hl-many-frame", title: terms.frame, sandbox: "allow-scripts", hidden: true });
  let report = "";
  const say = ({ kind, parts, fraction = null }) => {
    line.replaceChildren(...parts.map((part) => make(part.strong ? "strong" : "span", { text: part.text })));
    line.dataset.kind = kind;
    line.setAttribute("aria-live", kind === "busy" ? "off" : "polite");
    bar.hidden = fraction === null;
    if (fraction !== null) bar.value = fraction;
    element.dataset.state = kind;
    halt.disabled = kind !== "busy";
    frame.toggleAttribute("data-old", kind === "busy");
  };
  const files = chooser(terms, props.limits, (text) => {
    if (text) say({ kind: "error", parts: [{ text }] });
    else if (element.dataset.state === "error") say({ kind: "idle", parts: [] });  // a run that is under way keeps its Stop
  });
  const go = button(terms.start, async () => {
    say({ kind: "busy", parts: [{ text: terms.asked }] });
    trigger("submit", { files: await files.sent() });
  }, { class: "hl-button hl-many-go" });
  const halt = button(terms.stop, () => trigger("stop", {}), { disabled: true });
  const keep = button(terms.save, () => save(new Blob([report], { type: "text/html" }), "report.html"), { disabled: true });
  root.replaceChildren(files.box,
    make("div", { class: "hl-many-tools" }, go, halt, keep), make("div", { class: "hl-many-say" }, line, bar), frame);
  follow(props, watch, ["value"], () => {
    const since = performance.now(), { value } = props;
    if (!value) return;
    say(value);
    if (value.report) {
      report = value.report;
      frame.srcdoc = report;
      frame.hidden = keep.disabled = false;
    }
    painted(element, value.id, since);
  });
}
