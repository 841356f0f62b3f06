// The status: one sentence about the result, a line on how it was computed or what is being computed, and a button for
// the next question. It also marks the page as busy, which dims old maps.
import { returnToModel } from "../parts.js";
import { selectTab } from "../tabs.js";
import { state, subscribe, update } from "../store.js";
import { explain } from "../text/terms.js";
import { repairAddress } from "./address.js";
import { markAllCurrent } from "./outdated.js";
import { StatusLine } from "./status_line.js";
import { make } from "../wire.js";

const NARROW = 768,
  WIDE = 1280; // from here on, map and network are in one view, and the sentence has one line
const MANY = "many", // the view of many images, to which sentences about one do not belong
  EDITED = "erase"; // the view of an edited image, which has its own sentences
const DELAY = 300; // milliseconds before "Computing" is shown, because fast answers arrive earlier

/** Draw the button of what can be done next, or hide it. */
function drawAction(button, action, onclick) {
  button.hidden = !action;
  if (!action) return;
  Object.assign(button, { textContent: action.label, title: action.title ?? action.label, disabled: false, onclick });
}

/** Change a setting, or open the comparison. */
function askNext(next, trigger) {
  if (next.choose) return trigger("change", next.choose);
  update({ comparison: next.compare });
  selectTab("compare");
}

/** Open the erase view with the region that the map is about. */
function openErase(erase) {
  update({ erasing: erase.edit });
  selectTab("erase");
}

/**
 * Draw the sentences: the first is the prediction. Only those that change are replaced, and spoken again.
 * @param {HTMLElement} element
 * @param {string[]} sentences
 */
function drawHeadline(element, [prediction, ...rest]) {
  const text = rest.join(" ");
  if (!prediction) element.replaceChildren();
  else if (element.firstChild?.textContent !== prediction)
    element.replaceChildren(make("strong", { text: prediction }), " ", make("span", { text }));
  const second = element.children[1];
  if (second && second.textContent !== text) second.textContent = text;
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
  const status = new StatusLine(terms.progress, { role: null, tabindex: -1 });
  const next = make("button", { class: "hl-button hl-next", hidden: true });
  const erase = make("button", { class: "hl-button hl-cover", hidden: true });
  root.setAttribute("role", "status");
  root.setAttribute("aria-atomic", "false"); // the result of the experiment is spoken without the rest
  root.replaceChildren(headline, make("div", { class: "hl-status-row" }, status.line, erase, next), status.bar);
  explain(headline);
  return { headline, status, next, erase };
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const root = element.firstElementChild;
  const { headline, status, next, erase } = build(root, props.terms);
  let requested = false,
    timer = 0,
    latest = 0,
    settled = "idle", // the last phase in which nothing was computed
    isOld = false, // whether the sentences belong to the former question
    refusal = null, // why a model cannot be loaded, which is shown after the answer of the former model, too
    /** @type {any} the last value with sentences */
    answer = { kind: "idle" };
  /** Show the sentences of the selected view. */
  const showSentences = () => {
    root.toggleAttribute("data-many", state.view === MANY);
    const edited = state.view === EDITED && state.edited;
    // What follows from the tests replaces the first sentence, but not the result of an experiment.
    const isChecked = Boolean(answer.key) && !answer.settled && state.checked?.key === answer.key;
    drawHeadline(headline, edited ? edited.headline : isChecked ? state.checked.headline : (answer.headline ?? []));
    headline.dataset.of = edited ? (edited.isOld ? "last" : "done") : isOld ? "last" : answer.kind;
  };
  subscribe(["view", "edited", "checked"], showSentences);
  new ResizeObserver(() => fitHeadline(headline)).observe(root);
  const show = (value) => {
    status.say(value.kind, value.parts, value.fraction);
    // The sentence of the last answer stays, dimmed, until the next one is known, so that the layout does not shift.
    const isKnown = value.kind !== "busy" || Boolean(value.headline?.length);
    if (isKnown) {
      answer = value;
      isOld = false;
      drawAction(next, value.next, () => askNext(value.next, trigger));
      drawAction(erase, value.erase, () => openErase(value.erase));
    }
    showSentences();
  };
  subscribe(["explained"], () => {
    requested = true;
  });
  const setPhase = (phase) => {
    document.documentElement.dataset.hlState = phase;
    if (phase !== "busy") settled = phase;
    update({ phase });
  };
  /** Show that a model cannot be loaded. The page keeps the former model with its map. */
  const keepModel = (value) => {
    status.say(value.kind, value.parts);
    const isAnswered = returnToModel(value.former);
    refusal = isAnswered ? null : value;
    if (!isAnswered) return;
    next.disabled = erase.disabled = isOld = false;
    showSentences();
    markAllCurrent();
    repairAddress();
    setPhase(settled);
  };
  subscribe(["asked"], () => {
    clearTimeout(timer);
    timer = setTimeout(() => show({ kind: "busy", parts: [{ text: props.terms.computing }] }), DELAY);
    next.disabled = erase.disabled = isOld = true;
    status.line.dataset.kind = "old";
    refusal = null;
    showSentences();
    setPhase("busy");
  });
  return (given) => {
    const value = given || { kind: "idle", parts: [] };
    if (value.id < latest) return false; // the result of an experiment on the last map arrives after the next question
    latest = value.id;
    clearTimeout(timer);
    if (value.former) keepModel(value);
    else {
      show(value);
      if (refusal && value.kind === "done") status.say(refusal.kind, refusal.parts);
      setPhase(value.kind);
    }
    if (requested && window.innerWidth < NARROW) {
      // stacked columns: the result is below the visible area
      element.scrollIntoView({ block: "start", behavior: "smooth" });
      status.line.focus({ preventScroll: true });
    }
    requested = false;
  };
}
