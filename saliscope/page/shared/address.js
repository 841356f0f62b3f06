// The address always holds the state of the page. Each request (image, model, layer, class, method, options, bands) is
// a step of the history: Back requests it again. Display settings (opacity, tab, channel, ...) belong to their step.
import { copyText } from "./copy.js";
import { uploadFile, findImage } from "./stored_images.js";
import { askAddress, isPinned, keepsTarget, optionFields, settings } from "../parts.js";
import { selectedTab, selectTab, tabs } from "../tabs.js";
import { follow, state, subscribe } from "../store.js";

const REQUEST_PARAMETERS = ["example", "own", "model", "layer", "class", "method", "bands", "options", "pin"];
const MAX_LENGTH = 500,
  MAX_LENGTHS = { options: 2000, edit: 4000 }; // characters, as in saliscope/compute/bundles/links.py
const VERSION = "1"; // of addresses, as in saliscope/compute/bundles/links.py
const NO_EXAMPLE = "none"; // the example of a page without an image
const SHARED = "shared"; // the user's own image in a link that was copied
const WRITE_DELAY = 400; // milliseconds; browsers reject hundreds of changes in a row

const parts = [],
  listeners = [];
let timer = 0,
  pendingAnswer = null,
  written = "";

const text = (value) => (typeof value === "string" ? value : "");
const isValid = (name, value) => text(value) && value.length <= (MAX_LENGTHS[name] || MAX_LENGTH);

function parseObject(json) {
  try {
    return Object(JSON.parse(json));
  } catch {
    return {};
  }
}

/** Return the address parameters with these names, without those that are too long. */
function parameters(names) {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(names.map((name) => [name, query.get(name)]).filter((pair) => isValid(...pair)));
}

/** Set or remove parameters; unknown parameters, such as the theme, stay. */
function write(url, values) {
  url.searchParams.set("v", VERSION);
  for (const [name, value] of Object.entries(values)) {
    if (isValid(name, value)) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
}

/** Set or remove parameters of the address. */
function set(values, push = false) {
  const url = new URL(location.href);
  write(url, values);
  if (url.href !== location.href) {
    try {
      history[push ? "pushState" : "replaceState"](null, "", url);
    } catch {
      /* too many changes: the next one writes everything */
    }
  }
  written = JSON.stringify(parameters(REQUEST_PARAMETERS));
  for (const listener of listeners) listener();
}

/** Write the state of all scripts. */
function flush() {
  clearTimeout(timer);
  timer = 0;
  for (const { names, read } of parts) set({ ...Object.fromEntries(names.map((name) => [name, ""])), ...read() });
}

function scheduleWrite() {
  if (!timer) timer = setTimeout(flush, WRITE_DELAY);
}

/**
 * Bind display settings to parameters of the address.
 * @param {string[]} names the parameters, none of them in REQUEST_PARAMETERS
 * @param {() => Object<string, ?string>} read returns their values; missing or empty values mean the default and are
 *   not written
 * @param {(values: Object<string, string>, coming: boolean) => void} write sets them; called immediately if the address
 *   has some, and when the user goes back or forward. `coming`: the answer to the request is still pending. Links are
 *   untrusted: values have a limited length but may contain anything, so check them; a missing name means
 *   the default
 * @returns {() => void} a function to call after every change; the address is updated within half a second
 */
export function bindParameters(names, read, write) {
  parts.push({ names, read, write });
  const given = parameters(names);
  if (Object.keys(given).length) write(given, true);
  return scheduleWrite;
}

/** Add a request to the history, unless the address already contains it. */
function recordRequest(changes) {
  const old = parameters(REQUEST_PARAMETERS),
    now = { ...old, ...changes };
  if ((now.model || "") !== (old.model || ""))
    now.layer = now.options = ""; // names of another model
  else if ((now.method || "") !== (old.method || "") && !("options" in changes)) now.options = "";
  if (REQUEST_PARAMETERS.every((name) => (old[name] || "") === (now[name] || ""))) return;
  pendingAnswer = null;
  if (timer) flush();
  set(now, true);
}

const newImage = (image) => ({ example: "", own: "", ...image, ...(keepsTarget() ? {} : { class: "" }) });

/** Record the request of a click before its answer: if the connection is lost, the page will be reloaded. */
export function recordClick(data) {
  const { remedy, ...names } = Object(data);
  const changes = {},
    options = parseObject(parameters(["options"]).options);
  for (const [name, value] of Object.entries({ ...names, ...remedy })) {
    const parameter = name === "target" ? "class" : name;
    if (["model", "layer", "class", "method"].includes(parameter)) changes[parameter] = text(value);
    else if (remedy && name in remedy) changes.options = JSON.stringify(Object.assign(options, { [name]: value }));
  }
  recordRequest(changes);
}

/** Return all settings as parameters. */
function settingsParameters() {
  const { model, layer, target, method, bands, options: form } = settings();
  const defaults = Object.fromEntries(
    optionFields().map((each) => [each.name, each.choices?.includes("auto") ? "auto" : each.default]),
  );
  const own = Object.entries(form.values || {}).filter(([name, value]) => value !== null && value !== defaults[name]);
  const isListed = form.model === model && form.method === method;
  return {
    model: text(model),
    layer: form.model === model ? text(layer) : "", // otherwise it is the name of another model
    class: text(target),
    method: text(method),
    options: own.length && isListed ? JSON.stringify(Object.fromEntries(own)) : "",
    bands: text(bands).split(" of ")[0],
    pin: isPinned() ? "1" : "",
  };
}

/** Record all settings: after a change of the bands or the checkbox, or a click on Explain. */
export function recordChoice() {
  recordRequest(settingsParameters());
}

/** Record a new image, or that there is none; `own` is the id of an upload that this browser stores. */
export function recordImage({ image }, own) {
  const example = image === null ? NO_EXAMPLE : own ? "" : image.slice(image.indexOf(":") + 1);
  recordRequest(newImage({ example, own }));
}

/** Upload the user's stored image from the address again: {file}; it is null if it is gone. */
async function uploadOwnImage() {
  const { own: id } = parameters(["own"]);
  if (!id) return {};
  const found = await findImage(id);
  return { file: found ? (await uploadFile(found)).path || null : null };
}

/** Ask for the answer of the address when the page opens. */
export async function openAddress() {
  const address = location.search.slice(1);
  askAddress({ address, first: true, landed: Boolean(window.saliscope?.stored), ...(await uploadOwnImage()) });
}

/** Store an answer's settings in the address, unless they belong to an earlier request. */
function handleAnswer() {
  pendingAnswer = state.question;
  const now = parameters(REQUEST_PARAMETERS);
  if (["model", "class", "method"].every((name) => !now[name] || now[name] === pendingAnswer.address[name]))
    writeSettings(true);
}

function writeSettings(now = false) {
  if (!pendingAnswer || !(now || state.drawn["hl-overlay"] > pendingAnswer.id)) return;
  const { own: id, example } = parameters(["own", "example"]);
  set({
    ...pendingAnswer.address,
    example: id ? "" : example === NO_EXAMPLE ? NO_EXAMPLE : state.example || example,
  });
  pendingAnswer = null;
}

/** Write the settings of the last answer again, because those of the address cannot be answered. */
export function repairAddress() {
  pendingAnswer = state.question;
  writeSettings(true);
}

/** Return the link to what the page shows now, also before the answer of its settings, and whether it has an image. */
export function currentLink() {
  if (timer) flush();
  const url = new URL(location.href);
  if (state.answered) write(url, settingsParameters());
  const isShared = url.searchParams.has("own");
  if (isShared) url.searchParams.set("own", SHARED);
  url.hash = "";
  return { address: url.href, isShared };
}

/** Copy the link to the clipboard; returns it and a message. */
export async function copyLink({ copied, copy, without_image: more }) {
  const { address, isShared } = currentLink(),
    message = (await copyText(address)) ? copied : copy;
  return { address, text: isShared ? `${message} ${more}` : message };
}

/** Call `listener` after every change of the address. */
export function onAddress(listener) {
  listeners.push(listener);
}

/** Handle Back and Forward: restore the scripts' state, and repeat the request if it has changed. */
async function restore() {
  const before = written,
    address = location.search;
  written = JSON.stringify(parameters(REQUEST_PARAMETERS));
  clearTimeout(timer);
  timer = 0;
  for (const { names, write } of parts) write(parameters(names), written !== before);
  if (written === before) return;
  pendingAnswer = null;
  const found = await uploadOwnImage();
  if (address === location.search) askAddress({ address: address.slice(1), ...found });
}

/** Store the selected view in the address. */
function bindViews() {
  const [first] = tabs();
  const changed = bindParameters(
    ["tab"],
    () => ({ tab: selectedTab() === first ? "" : selectedTab() }),
    ({ tab = first }) => selectTab(tab),
  );
  subscribe(["view"], changed);
}

/** Keep the address up to date. */
export function bindAddress() {
  written = JSON.stringify(parameters(REQUEST_PARAMETERS));
  addEventListener("popstate", restore);
  addEventListener("pagehide", () => {
    if (timer) flush();
  });
  follow("question", handleAnswer);
  subscribe(["drawn"], () => writeSettings());
  bindViews();
}
