// The page: starts its parts, and what concerns all of them.
import { startParts } from "./parts.js";
import { bindAddress, openAddress, recordClick } from "./shared/address.js";
import { downloadFiles } from "./shared/download.js";
import { acceptImages } from "./shared/drop.js";
import { markOutdated } from "./shared/outdated.js";

/**
 * Start the page in an element that Gradio has created.
 * @param {Record<string, import("./parts.js").Mount>} mounts functions that draw parts, by script; the bundle adds them
 * @param {HTMLElement} element
 * @param {Record<string, string>} props the HTML of the page, its parts and texts
 * @param {(event: string, data: object) => void} trigger sends an event to the server
 * @param {(names: string[], listener: () => void) => void} watch calls the listener after changes of these props
 */
export async function start(mounts, element, props, trigger, watch) {
  element.firstElementChild.innerHTML = props.page; // HTML of the server, without texts of visitors
  startParts(mounts, props, trigger, watch, recordClick);
  bindAddress();
  acceptImages(JSON.parse(props.terms).drop);
  downloadFiles();
  markOutdated();
  await openAddress();
}
