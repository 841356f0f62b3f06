// Starts the parts of the page, and is the only script that talks to the server: it sends one kind of event, and
// receives messages.
import { heldCrops } from "./maps/crops.js";
import { forPointer } from "./shared/touch.js";
import { state, subscribe, update, change } from "./store.js";

/**
 * A part of the page.
 * @typedef {object} Part
 * @property {string} id of its element
 * @property {string} module the script that draws it
 * @property {Record<string, any>} props texts and other fixed values, and `value`, the data from the server
 * @property {boolean} started
 * @property {Draw | void} draw
 */

/**
 * Draws a part, once, when it is visible for the first time.
 * @callback Mount
 * @param {HTMLElement} element the element of the part; its first child is empty
 * @param {Record<string, any>} props of the part; `value` and others change
 * @param {(event: string, data?: object) => void} trigger handles an event of the part: "change" changes settings of the
 *   page by name and asks for their answer, and any other event goes to the handler of the part on the server
 * @returns {Draw | void}
 */

/**
 * Draws the value of a part: at its start, and whenever a message changes the part.
 * @callback Draw
 * @param {any} value
 * @returns {any} `false`, or a promise of it, if the part does not show this value yet, or if it calls `markDrawn` itself
 */

/** A part that a class draws; its method `receive` is a `Draw`. */
export class Component {
  constructor(element, props, trigger) {
    this.element = element;
    this.root = element.firstElementChild;
    this.props = props;
    this.terms = props.terms;
    this.trigger = trigger;
  }
}

/**
 * Return the function that mounts a component.
 * @param {new (...given: any[]) => Component & {receive: Draw}} Type
 * @returns {Mount}
 */
export const mountClass = (Type) => (element, props, trigger) => {
  const component = new Type(element, props, trigger);
  return (value) => component.receive(value);
};

/** @type {Map<string, Part>} */
const parts = new Map();
const seen = new Set(); // ids of the newest messages, because Gradio sends the last one of a generator twice
const MEMORY = 500;

/** @type {Record<string, Mount>} functions that draw parts, by module */
let mounts = {};
let send = null,
  recordClick = null,
  asked = "", // the settings of the question that has no answer yet
  answered = "", // the settings of the newest answer
  newest = 0, // the id of the newest message
  number = 0;

/**
 * Start the parts; `trigger` sends an event of Gradio, `watch` calls after changes of `props`, and `record` stores changes
 * of settings in the address.
 */
export function startParts(modules, props, trigger, watch, record) {
  mounts = modules;
  recordClick = record;
  for (const { id, module, value, props: fixed } of JSON.parse(forPointer(props.parts))) {
    const stored = window.saliscope?.stored?.props[id];
    parts.set(id, { id, module, props: { ...fixed, value, ...stored }, started: false, draw: undefined });
  }
  update(window.saliscope?.stored?.state || {});
  watch(["value"], () => {
    if (props.value) receive(JSON.parse(props.value));
  });
  send = (request) => trigger("submit", request);
  startVisible();
}

/** Start the parts that are visible for the first time; the others start when their view is opened. */
export function startVisible() {
  const isShown = ({ id, started }) => !started && !document.getElementById(id)?.closest("[data-tab][hidden]");
  const found = [...parts.values()].filter(isShown);
  for (const part of found) part.started = true;
  for (const part of found) {
    const trigger = (event, data = {}) => act(part, event, data);
    part.draw = mounts[part.module](document.getElementById(part.id), part.props, trigger);
    drawPart(part);
  }
}

/**
 * Draw the value of a part, and mark it as drawn when it is.
 * @param {Part} part
 */
function drawPart({ id, props, draw }) {
  if (!draw) return;
  const since = performance.now(),
    { value } = props,
    finish = (drawn) => drawn === false || markDrawn(document.getElementById(id), value?.id, since);
  const drawn = draw(value);
  if (drawn instanceof Promise) drawn.then(finish);
  else finish(drawn);
}

/**
 * Mark a part with the id of its answer and the drawing time; tests wait for it.
 * @param {Element} element
 * @param {?number} id
 * @param {number} since the start in milliseconds
 */
export function markDrawn(element, id, since) {
  element.dataset.id = String(id ?? "");
  change("drawn", { [element.id]: Number(id || 0) });
  element.dataset.ms = (performance.now() - since).toFixed(1);
}

/** Show a message of the server. */
function receive(message) {
  if (seen.has(message.id)) return;
  seen.add(message.id);
  newest = Math.max(newest, message.id);
  if (seen.size > MEMORY) seen.delete(seen.values().next().value);
  if (message.question && message.question < number) return; // of a former question
  const changed = Object.entries(message.props)
    .filter(([id]) => parts.has(id))
    .map(([id, props]) => ({ part: parts.get(id), props: differences(parts.get(id).props, props, message.id) }));
  for (const { part, props } of changed) Object.assign(part.props, props);
  const { answered: answer, ...rest } = message.state;
  updateState(rest);
  for (const { part, props } of changed) if (Object.keys(props).length) drawPart(part);
  if (answer) answered = JSON.stringify(settings());
  updateState({ answered: answer }); // last, because it lets parts ask for what follows
}

/** Return the new props that differ from the old ones; objects always do, and a value gets an id, see `markDrawn`. */
function differences(old, props, id) {
  const isObject = (value) => Object(value) === value,
    changed = Object.entries(props).filter(([name, value]) => isObject(value) || old[name] !== value);
  return Object.fromEntries(
    changed.map(([name, value]) => [name, name === "value" && isObject(value) ? { id, ...value } : value]),
  );
}

function updateState(values) {
  for (const [key, value] of Object.entries(values)) {
    const [name, field] = key.split(".");
    if (!value) continue;
    if (field) change(name, { [field]: value });
    else update(name === "question" ? { question: value, waiting: false } : { [name]: value });
  }
}

/** Return the id of the newest message. The ids of answers that come later are larger. */
export const newestMessage = () => newest;

/** Return the settings that the page shows. */
export function settings() {
  const value = (id) => parts.get(id).props.value;
  const { schema, id, ...options } = value("hl-options") || {};
  return {
    image: state.image?.image || null,
    model: value("hl-model"),
    layer: value("hl-layer"),
    target: value("hl-class"),
    method: value("hl-method"),
    bands: value("hl-bands")?.text || "",
    options,
  };
}

/** Return the items of a list of the page, see `toItem` in lists/choice.js. */
export const listOf = (id) => parts.get(id).props.names;

/** Return the fields of the options, with their defaults. */
export const optionFields = () => parts.get("hl-options").props.value?.schema || [];

/**
 * Change settings that the page shows, as a click or a link does.
 * @param {Record<string, any>} changes `model`, `layer`, `target`, `method` and `pin`, and options by name
 */
export function setSettings({ model, layer, target, method, pin, ...options }) {
  const values = { "hl-model": model, "hl-layer": layer, "hl-class": target, "hl-method": method, "hl-pin": pin };
  for (const [id, value] of Object.entries(values)) if (value !== undefined) set(id, value);
  const form = parts.get("hl-options").props.value;
  if (Object.keys(options).length) set("hl-options", { ...form, values: { ...form?.values, ...options } });
}

/** Forget the bands of the former image. Those of a link remain for the first image that has bands. */
export function forgetBands() {
  if (parts.get("hl-bands").props.value?.count) set("hl-bands", { text: "" });
}

function set(id, value) {
  parts.get(id).props.value = value;
  drawPart(parts.get(id));
}

/** Handle an event of a part: most ask the server, and a choice changes the settings and asks for their answer. */
function act(part, event, data) {
  if (event === "change") {
    recordClick(data);
    const { remedy, ...changes } = data;
    setSettings({ ...changes, ...remedy });
    askQuestion();
  } else request(part.id, event, data);
}

/**
 * Ask for the answer of the settings. What belongs to the former question dims at once.
 * @param {{again?: boolean}} more `again` computes a finished answer once more
 */
export function askQuestion({ again = false } = {}) {
  const form = settings(),
    wanted = JSON.stringify(form);
  if (wanted === asked && !again) return; // a click on a selected row is two events
  asked = wanted;
  question("ask", { again });
}

/**
 * Select the model of the last answer again, because the selected one cannot be loaded.
 * @returns {boolean} whether the page shows the answer of its settings; otherwise it asks for it
 */
export function returnToModel(model) {
  setSettings({ model });
  const isAnswered = JSON.stringify(settings()) === answered;
  if (isAnswered) {
    asked = answered;
    update({ waiting: false });
  } else askQuestion();
  return isAnswered;
}

/** Ask for the answer of an address. The first one of a page has no former question. */
export function askAddress(data) {
  asked = "";
  question("open", data, !data.first);
}

function question(event, data, dims = true) {
  number = Math.max(number + 1, Math.round(performance.now()));
  if (dims) update({ asked: number, waiting: true });
  request("hl-page", event, data, number);
}

/** Ask the server for something of one part. */
export function request(part, event, data, count = Math.round(performance.now())) {
  send({ part, event, data, form: settings(), number: count, crops: heldCrops() });
}

/**
 * Call `listener(key)` once for every new answer, as soon as the element is visible.
 * @param {Element} element
 * @param {(key: string) => void} listener
 * @returns {() => void} a function that calls it once more for the same answer
 */
export function whenAnswered(element, listener) {
  let last = null;
  const check = () => {
    const key = state.answered?.key;
    if (!key || key === last || !element.checkVisibility()) return;
    last = key;
    listener(key);
  };
  new IntersectionObserver(check).observe(element);
  subscribe(["answered"], check);
  check();
  return () => {
    last = null;
    check();
  };
}

/** Check whether the class is kept for other images. */
export const isPinned = () => Boolean(parts.get("hl-pin").props.value);

/** Check whether the target is kept for other images: a pinned class, or a sentence. */
export const keepsTarget = () => isPinned() || Boolean(parts.get("hl-class").props.sentences);
