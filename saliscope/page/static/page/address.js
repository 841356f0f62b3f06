// The address always holds the state of the page. Each request (image, model, layer, class, method, options, bands) is
// a step of the history: Back requests it again. Display settings (opacity, tab, channel, ...) belong to their step.
import { newId, uploadFile, findImage, storeImage } from "./stored_images.js";
import { heldCrops } from "../maps/crops.js";
import { isPinned, keepsTarget, selectedTab, selectTab, tabs, watchTabs } from "../gradio.js";
import { provide, state, subscribe, update } from "../store.js";

const REQUEST_PARAMETERS = ["example", "own", "model", "layer", "class", "method", "bands", "options", "pin"];
const MAX_LENGTH = 500,
  MAX_LENGTHS = { options: 2000, edit: 4000 }; // characters, as in saliscope/compute/bundles/links.py
const NO_EXAMPLE = "none"; // the example of a page without an image
const SHARED = "shared"; // the user's own image in a link that was copied
const WRITE_DELAY = 400; // milliseconds; browsers reject hundreds of changes in a row

const parts = [];
let timer = 0,
  pendingAnswer = null,
  written = "",
  restoring = null,
  labels = {};

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
function set(values, push = false) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(values)) {
    if (isValid(name, value)) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  if (url.href !== location.href) {
    try {
      history[push ? "pushState" : "replaceState"](null, "", url);
    } catch {
      /* too many changes: the next one writes everything */
    }
  }
  written = JSON.stringify(parameters(REQUEST_PARAMETERS));
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
function recordClick(data) {
  const { example, remedy, ...names } = Object(data);
  const changes = text(example) ? newImage({ example }) : {},
    options = parseObject(parameters(["options"]).options);
  for (const [name, value] of Object.entries({ ...names, ...remedy })) {
    const parameter = name === "target" ? "class" : name;
    if (["model", "layer", "class", "method"].includes(parameter)) changes[parameter] = text(value);
    else if (remedy && name in remedy) changes.options = JSON.stringify(Object.assign(options, { [name]: value }));
  }
  recordRequest(changes);
}

/** Record the settings after a change of the bands or the checkbox, or a click on Explain. */
export function recordChoice(model, layer, target, method, bands, form) {
  const { values = {}, schema = [], model: of, method: by } = parseObject(form);
  const defaults = Object.fromEntries(
    schema.map((each) => [each.name, each.choices?.includes("auto") ? "auto" : each.default]),
  );
  const own = Object.entries(values).filter(([name, value]) => value !== null && value !== defaults[name]);
  const options = own.length && of === model && by === method ? JSON.stringify(Object.fromEntries(own)) : "";
  recordRequest({
    model: text(model),
    layer: text(layer),
    class: text(target),
    method: text(method),
    options,
    bands: text(parseObject(bands).text).split(" of ")[0],
    pin: isPinned() ? "1" : "",
  });
  return [];
}

/**
 * Replace the last value of a request by a number that grows, because the server may start requests in the wrong order,
 * and by the keys of the crops that the page holds, which the server does not send again.
 */
export function numberRequest(...values) {
  const sent = { number: Math.round(performance.now()), crops: heldCrops() };
  return [...values.slice(0, -1), JSON.stringify(sent)];
}

/** Record that the user uploaded or removed an image; `file` is the value of Gradio's image component. */
export async function recordImage(file) {
  update({ steps: null });
  return recordUpload(file);
}

/** Record a new image, or that there is none. */
export async function recordUpload(file) {
  const id = newId();
  recordRequest(newImage(file ? { own: id } : { example: NO_EXAMPLE }));
  if (file) await storeImage(id, file);
  return [];
}

/** Upload the user's stored image from the address again: {own, file}; file is null if it is gone. */
async function uploadOwnImage() {
  const { own: id } = parameters(["own"]);
  return id ? { own: id, file: await uploadFile(await findImage(id)) } : {};
}

/** Do the same when the page opens; returns the component's value, and whether the page shows the stored answer. */
export async function restoreImage() {
  restoring ??= uploadOwnImage();
  return [JSON.stringify({ ...(await restoring), landed: Boolean(window.saliscope?.landed) })];
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

/** Copy the link to the clipboard; returns the link and a message as JSON. */
export async function copyLink() {
  if (timer) flush();
  const url = new URL(location.href),
    { copied, copy, without_image: more } = labels;
  const text = url.searchParams.has("own") ? ` ${more}` : "";
  if (text) url.searchParams.set("own", SHARED);
  url.hash = "";
  let message = copy;
  try {
    await navigator.clipboard.writeText(url.href);
    message = copied;
  } catch {
    /* no permission, or no HTTPS */
  }
  return JSON.stringify({ link: url.href, text: message + text });
}

/** Handle Back and Forward: restore the scripts' state, and repeat the request if it has changed. */
async function restore(ask) {
  const before = written,
    address = location.search;
  written = JSON.stringify(parameters(REQUEST_PARAMETERS));
  clearTimeout(timer);
  timer = 0;
  for (const { names, write } of parts) write(parameters(names), written !== before);
  if (written === before) return;
  pendingAnswer = null;
  const found = await uploadOwnImage();
  if (address === location.search) ask({ address: address.slice(1), ...found });
}

/** Store the selected tab in the address. */
function bindTabs() {
  let done = () => {};
  const bind = () => {
    const [first] = tabs();
    done = bindParameters(
      ["tab"],
      () => ({ tab: selectedTab() === first ? "" : selectedTab() }),
      ({ tab = first }) => {
        if (selectedTab() !== tab) selectTab(tab);
      },
    );
  };
  watchTabs(bind, () => done());
}

/**
 * Keep the address up to date.
 * @param {{asks: string[], terms: object}} props components whose clicks change the settings, and labels of the link
 * @param {(data: {address: string, own?: string, file?: ?string}) => void} ask requests the settings of an address
 */
export function bindAddress({ asks, terms }, ask) {
  labels = terms;
  written = JSON.stringify(parameters(REQUEST_PARAMETERS));
  provide("recordClick", (id, data) => {
    if (asks.includes(id)) recordClick(data);
  });
  addEventListener("popstate", () => restore(ask));
  addEventListener("pagehide", () => {
    if (timer) flush();
  });
  subscribe(["question"], handleAnswer);
  if (state.question) handleAnswer();
  subscribe(["drawn"], () => writeSettings());
  bindTabs();
}
