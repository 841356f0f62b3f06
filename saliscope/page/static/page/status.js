// The status: one sentence about the result, a line on how it was computed or what is being computed, and a button for
// the next question. It also marks the page as busy, which dims old maps.
import { selectTab } from "../gradio.js";
import { state, subscribe, update } from "../store.js";
import { explain } from "../text/terms.js";
import { watchProps, make, markDrawn } from "../wire.js";

const NARROW = 768,
  WIDE = 1280; // from here on, map and network are in one view, and the sentence has one line
const MANY = "many", // the view of many images, to which sentences about one do not belong
  EDITED = "erase"; // the view of an edited image, which has its own sentences
const DELAY = 300; // milliseconds before "Computing" is shown, because fast answers arrive earlier

/** Draw the button of the next question: it changes a setting, or opens the comparison. */
function drawNext(button, next, trigger) {
  button.hidden = !next;
  if (!next) return;
  button.textContent = button.title = next.label;
  button.onclick = () => {
    if (next.choose) return trigger("select", next.choose);
    update({ comparison: next.compare });
    selectTab("compare");
  };
}

/** Draw the button that opens the erase view with the region that the map is about. */
function drawErase(button, erase) {
  button.hidden = !erase;
  if (!erase) return;
  Object.assign(button, { textContent: erase.label, title: erase.title });
  button.onclick = () => {
    update({ erasing: erase.edit });
    selectTab("erase");
  };
}

/** Draw the line on how the result was computed. */
function drawLine(line, { kind, parts }) {
  const tag = ({ mono, strong }) => (mono ? "code" : strong ? "strong" : "span");
  const drawn = parts.map((part) => make(tag(part), { text: part.text }));
  if (drawn.map((part) => part.outerHTML).join("") !== line.innerHTML) line.replaceChildren(...drawn);
  line.dataset.kind = kind;
}

/** Draw the sentences: the first is the prediction. Only those that change are replaced, and spoken again. */
function drawHeadline(element, { headline: [prediction, ...rest], title = "" }) {
  const text = rest.join(" ");
  if (!prediction) element.replaceChildren();
  else if (element.firstChild?.textContent !== prediction)
    element.replaceChildren(make("strong", { text: prediction }), " ", make("span", { text }));
  const second = element.children[1];
  if (second && second.textContent !== text) second.textContent = text;
  if (second) second.title = title;
  fitHeadline(element);
}

/** Make the second sentence smaller, or cut it, if both do not fit on one line: a second line would move the map. */
function fitHeadline(element) {
  delete element.dataset.long;
  element.title = "";
  const [first, second] = element.children;
  if (window.innerWidth < WIDE || !second?.textContent) return;
  const fits = () => second.getBoundingClientRect().bottom < first.getBoundingClientRect().bottom + 8;
  for (const size of ["long", "very", "most", "cut"]) if (!fits()) element.dataset.long = size;
  element.title = element.dataset.long === "cut" ? second.textContent : "";
}

/** Create the elements of the status in `root`. */
function build(root, terms) {
  const headline = make("p", { class: "hl-headline" });
  const line = make("p", { class: "hl-line", tabindex: -1 });
  const next = make("button", { type: "button", class: "hl-button hl-next", hidden: true });
  const erase = make("button", { type: "button", class: "hl-button hl-cover", hidden: true });
  const bar = make("progress", { class: "hl-progress", max: 1, hidden: true, "aria-label": terms.progress });
  root.setAttribute("role", "status");
  root.setAttribute("aria-atomic", "false"); // the result of the experiment is spoken without the rest
  root.replaceChildren(headline, make("div", { class: "hl-status-row" }, line, erase, next), bar);
  explain(headline);
  return { headline, line, next, erase, bar };
}

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  const { headline, line, next, erase, bar } = build(root, props.terms);
  let requested = false,
    timer = 0,
    latest = 0,
    answer = { headline: [], of: "idle", key: "" };
  /** Show the sentences of the selected view. */
  const showSentences = () => {
    root.toggleAttribute("data-many", state.view === MANY);
    const edited = state.view === EDITED && state.edited;
    // An experiment is shown instead of the verdict.
    const isChecked = Boolean(answer.key) && state.checked?.key === answer.key && !answer.title;
    drawHeadline(headline, edited || (isChecked ? { headline: state.checked.headline } : answer));
    headline.dataset.of = edited ? (edited.isOld ? "last" : "done") : answer.of;
  };
  const dim = () => {
    if (answer.of !== "busy") answer.of = "last";
  };
  subscribe(["view", "edited", "checked"], showSentences);
  new ResizeObserver(() => fitHeadline(headline)).observe(root);
  const show = (value) => {
    drawLine(line, value);
    // The sentence of the last answer stays, dimmed, until the next one is known, so that the layout does not shift.
    const isKnown = value.kind !== "busy" || Boolean(value.headline?.length);
    if (isKnown) {
      answer = { headline: value.headline || [], title: value.title, of: value.kind, key: value.key || "" };
      drawNext(next, value.next, trigger);
      drawErase(erase, value.erase);
    } else dim();
    showSentences();
    bar.hidden = value.fraction === undefined || value.fraction === null;
    if (!bar.hidden) bar.value = value.fraction;
  };
  subscribe(["explained"], () => {
    requested = true;
  });
  watchProps(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value || { kind: "idle", parts: [] };
    if (value.id < latest) return; // the result of an experiment on the last map arrives after the next question
    latest = value.id;
    clearTimeout(timer);
    if (value.patient) {
      timer = setTimeout(() => show(value), DELAY);
      dim();
      showSentences();
    } else show(value);
    document.documentElement.dataset.hlState = value.kind;
    markDrawn(element, value.id, since);
    if (requested && window.innerWidth < NARROW) {
      // stacked columns: the result is below the visible area
      element.scrollIntoView({ block: "start", behavior: "smooth" });
      line.focus({ preventScroll: true });
    }
    requested = false;
  });
}
