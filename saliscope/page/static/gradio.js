// The only script that talks to Gradio: mounts components, sends their events, and reads Gradio's own controls.
import { perform, state, subscribe, update } from "./store.js";

/** Events that may change the settings of the page. */
const CHOICES = ["select", "input"];

/** Events that wait for the image of a clicked example, because a request contains the image field. */
const waiting = [];

subscribe(["awaitsImage"], () => {
  if (!state.awaitsImage) for (const send of waiting.splice(0)) send();
});

/** Return the fixed props of a component: Gradio loses them if a value arrives before the component is mounted. */
function fixedProps(id) {
  return window.gradio_config.components.find(({ props }) => props.elem_id === id).props.props;
}

/** Return a component's props with `value` parsed from JSON; a value that a script sets is sent as JSON. */
function parseProps(id, props) {
  let raw,
    value = null;
  return Object.defineProperty({ ...fixedProps(id) }, "value", {
    get() {
      if (props.value !== raw) {
        raw = props.value;
        value = typeof raw === "string" && raw ? JSON.parse(raw) : null;
      }
      return value;
    },
    set(given) {
      props.value = JSON.stringify(given);
    },
  });
}

/**
 * Mount module `name`, which exports `mount(element, props, trigger, watch)`.
 * @param {string} name path below static/, without its extension
 * @param {Element} element
 * @param {object} props `value`, the data from the server, and fixed labels
 * @param {(event: string, data?: object) => void} trigger sends an event to the server
 * @param {(names: string[], listener: () => void) => void} watch calls the listener after changes of these props
 * @param {boolean} json whether the value is JSON; otherwise the module gets Gradio's own props
 */
export async function start(name, element, props, trigger, watch, json = true) {
  const module = await import(new URL(`${name}.js`, import.meta.url)),
    id = componentId(element);
  const send = (event, data) => {
    // Recorded before the request is sent, because the page reloads if the connection is lost.
    if (CHOICES.includes(event)) perform("recordClick", id, data);
    if (!state.awaitsImage || event === "stop" || id === "hl-examples") trigger(event, data);
    else waiting.push(() => trigger(event, data));
  };
  module.mount(element, json ? parseProps(id, props) : props, send, watch);
}

/**
 * Return the id of the component that contains an element.
 * @param {Element} element
 */
export function componentId(element) {
  return element.closest("[id^='hl-']")?.id || "";
}

/**
 * Set a value of the state from a JavaScript handler of a Gradio event.
 * @param {keyof import("./store.js").State} key
 * @param {unknown} value
 */
export function receive(key, value) {
  update({ [key]: value });
  return [];
}

/**
 * Call `listener(key)` once for every new answer, as soon as the element is visible.
 * @param {Element} element
 * @param {(key: string) => void} listener
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
}

// Gradio's own controls, which have no script of ours

/** Check whether the class is kept for other images. */
export const isPinned = () => Boolean(document.querySelector("#hl-pin input")?.checked);

/** Check whether the target is kept for other images: a pinned class, or a sentence. */
export const keepsTarget = () => isPinned() || Boolean(document.querySelector(".hl-sentences:not([hidden])"));

/** Count the clicks on Explain in the state. */
export function countExplained() {
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#hl-explain")) update({ explained: state.explained + 1 });
  });
}

const tabList = () => document.querySelector("#hl-tabs [role=tablist]");

/** Return the ids of all tabs. */
export const tabs = () => [...tabList().querySelectorAll("[data-tab-id]")].map((each) => each.dataset.tabId);

/** Return the id of the selected tab. */
export const selectedTab = () => tabList().querySelector("[aria-selected=true]")?.dataset.tabId;

/**
 * Select a tab; unknown ids are ignored.
 * @param {string} id
 */
export function selectTab(id) {
  const all = [...(tabList()?.querySelectorAll("[data-tab-id]") || [])];
  all.find((each) => each.dataset.tabId === id)?.click();
}

/**
 * Watch the tabs.
 * @param {() => void} ready called once Gradio has drawn them
 * @param {() => void} changed called after every selection
 */
export function watchTabs(ready, changed) {
  if (!tabList()) return void requestAnimationFrame(() => watchTabs(ready, changed));
  ready();
  new MutationObserver(changed).observe(tabList(), { subtree: true, attributeFilter: ["aria-selected"] });
}
