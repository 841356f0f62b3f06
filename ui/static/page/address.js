// The address always holds the state of the page. What is asked (picture, model, layer, class, method, options, bands) is
// a step of the history: Back asks it again. How the answer is looked at (opacity, tab, channel …) belongs to its step.
//
// A script that holds a part of the state calls `keep(names, read, write)` once:
//   names  its parameters of the address, none of them in ASKED
//   read   () => their values as strings by name; what is left out or empty is the default, which the address leaves out
//   write  (values, coming) => set them; called at once where the address has some, and when the visitor goes back or
//          forward; `coming`: together with a question whose answer is still to come. Values come from anybody's link: at
//          most LONGEST characters, otherwise anything, so check them; a name that is missing means the default
// and gets a function that it calls after every change. The address follows within half a second.
import { stand, watched } from "./lost.js";
import { fresh, give, known, remember } from "./pictures.js";
import { follow } from "../wire.js";

const ASKED = ["example", "own", "model", "layer", "class", "method", "bands", "options", "pin"];
const LONGEST = 200, OPTIONS = 2000;                     // characters, as in ui/share/links.py
const NONE = "none";                                     // the example of a page without a picture
const CALM = 400;                                        // milliseconds; browsers refuse hundreds of changes in a row

const parts = [];
let later = 0, late = null, standing = "", opening = null;

const text = (value) => (typeof value === "string" ? value : "");
const fits = (name, value) => text(value) && value.length <= (name === "options" ? OPTIONS : LONGEST);

function object(json) {
  try { return Object(JSON.parse(json)); } catch { return {}; }
}

/** The parameters of the address with these names, without those that are too long to be meant. */
function parameters(names) {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(names.map((name) => [name, query.get(name)]).filter((pair) => fits(...pair)));
}

/** Set or remove parameters; those that are nobody's, such as the theme, stay. */
function set(values, push = false) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(values)) {
    if (fits(name, value)) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  if (url.href !== location.href) {
    try { history[push ? "pushState" : "replaceState"](null, "", url); } catch { /* too many at once: the next one writes all */ }
  }
  standing = JSON.stringify(parameters(ASKED));
}

/** Write what the scripts hold. */
function look() {
  clearTimeout(later);
  later = 0;
  for (const { names, read } of parts) set({ ...Object.fromEntries(names.map((name) => [name, ""])), ...read() });
}

function changed() {
  if (!later) later = setTimeout(look, CALM);
}

export function keep(names, read, write) {
  parts.push({ names, read, write });
  const given = parameters(names);
  if (Object.keys(given).length) write(given, true);
  return changed;
}

/** A new question: a step of the history, unless the address says just this already. */
function asked(changes) {
  const old = parameters(ASKED), now = { ...old, ...changes };
  if ((now.model || "") !== (old.model || "")) now.layer = now.options = "";     // names of another network
  else if ((now.method || "") !== (old.method || "") && !("options" in changes)) now.options = "";
  if (ASKED.every((name) => (old[name] || "") === (now[name] || ""))) return;
  late = null;
  if (later) look();
  set(now, true);
}

const pinned = () => Boolean(document.querySelector("#hl-pin input")?.checked);
const another = (picture) => ({ example: "", own: "", ...picture, ...(pinned() ? {} : { class: "" }) });

/** What a click on a canvas asks, before any answer: where the connection is lost, the page will load anew. */
function clicked(data) {
  const { example, remedy, ...names } = Object(data);
  const changes = text(example) ? another({ example }) : {}, options = object(parameters(["options"]).options);
  for (const [name, value] of Object.entries({ ...names, ...remedy })) {
    const parameter = name === "target" ? "class" : name;
    if (["model", "layer", "class", "method"].includes(parameter)) changes[parameter] = text(value);
    else if (remedy && name in remedy) changes.options = JSON.stringify(Object.assign(options, { [name]: value }));
  }
  asked(changes);
}

/** What Gradio's lists, the bands and the options' form hold, when one of them was changed or Explain pressed. */
export function chosen(model, layer, target, method, bands, form) {
  stand();
  const { values = {}, schema = [], model: of, method: by } = object(form);
  const usual = Object.fromEntries(schema.map((each) => [each.name, each.choices?.includes("auto") ? "auto" : each.default]));
  const own = Object.entries(values).filter(([name, value]) => value !== null && value !== usual[name]);
  const options = own.length && of === model && by === method ? JSON.stringify(Object.fromEntries(own)) : "";
  asked({ model: text(model), layer: text(layer), class: text(target), method: text(method), options,
    bands: text(object(bands).text).split(" of ")[0], pin: pinned() ? "1" : "" });
  return [];
}

/** When the visitor gave a picture of their own, or took it away: `file` is what Gradio's picture holds. */
export async function pictured(file) {
  const id = fresh();
  asked(another(file ? { own: id } : { example: NONE }));
  if (file) await remember(id, file);
  return [];
}

/** The visitor's own picture that the address means, on the server again: {own, file}; {own} alone where it is gone. */
async function own() {
  const { own: id } = parameters(["own"]);
  return id ? { own: id, file: await give(await known(id)) } : {};
}

/** The same for the page that opens, as the value of the component. */
export async function opened() {
  opening ??= own();
  return [JSON.stringify(await opening)];
}

/** The settings of an answer: they stand in the address from now on, unless they are those of a former question. */
function answered(value) {
  stand();
  late = value && value.settings ? value : null;
  const now = parameters(ASKED);
  if (late && ["model", "class", "method"].every((name) => !now[name] || now[name] === late.settings[name])) settle(true);
}

function settle(now = false) {
  const shown = Number(document.getElementById("hl-overlay")?.dataset.id || 0);
  if (!late || !(now || shown > late.id)) return;
  const { own: id, example } = parameters(["own", "example"]);
  const pressed = document.querySelector("#hl-examples [aria-pressed=true]")?.dataset.id;
  set({ ...late.settings, example: id ? "" : example === NONE ? NONE : pressed || example });
  late = null;
}

/** The link to what is shown, into the clipboard; and what to say about it. */
export async function copy() {
  if (later) look();
  const url = new URL(location.href), more = url.searchParams.has("own") ? " Your own picture is not part of it." : "";
  url.searchParams.delete("own");
  url.hash = "";
  let said = "Copy this link:";
  try { await navigator.clipboard.writeText(url.href); said = "Link copied."; } catch { /* no permission, or no https */ }
  return JSON.stringify({ link: url.href, text: said + more });
}

/** Back and forward: what the scripts hold is set; the question is asked again where it is another one. */
async function back(ask) {
  const before = standing, address = location.search;
  standing = JSON.stringify(parameters(ASKED));
  clearTimeout(later);
  later = 0;
  for (const { names, write } of parts) write(parameters(names), standing !== before);
  if (standing === before) return;
  late = null;
  const found = await own();
  if (address === location.search) ask({ address: address.slice(1), ...found });
}

/** The tab in front is a part of the state. */
function tabs() {
  const list = document.querySelector("#hl-tabs [role=tablist]");
  if (!list) return void requestAnimationFrame(tabs);
  const all = () => [...list.querySelectorAll("[data-tab-id]")], front = () => list.querySelector("[aria-selected=true]");
  const first = all()[0]?.dataset.tabId;
  const done = keep(["tab"], () => ({ tab: front()?.dataset.tabId === first ? "" : front()?.dataset.tabId }), ({ tab = first }) => {
    if (front()?.dataset.tabId !== tab) all().find((each) => each.dataset.tabId === tab)?.click();
  });
  new MutationObserver(done).observe(list, { subtree: true, attributeFilter: ["aria-selected"] });
}

export function mount(element, props, trigger, watch) {
  standing = JSON.stringify(parameters(ASKED));
  document.addEventListener("hl-select", (event) => {
    if (props.asks.includes(event.target.closest("[id^=hl-]")?.id)) clicked(event.detail);
  });
  addEventListener("popstate", () => back((data) => trigger("select", data)));
  addEventListener("pagehide", () => { if (later) look(); });
  watched(props.tops, asked);
  follow(props, watch, ["value"], () => answered(props.value));
  const overlay = document.getElementById("hl-overlay");
  if (overlay) new MutationObserver(() => settle()).observe(overlay, { attributeFilter: ["data-id"] });
  tabs();
}
