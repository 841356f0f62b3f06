// What concerns the whole page: its address, images that are dropped on it, and Gradio's controls. Draws nothing.
import { bindAddress } from "./address.js";
import { acceptImages } from "./drop.js";
import { markOutdated } from "./outdated.js";
import { countExplained } from "../gradio.js";

export function mount(element, props, trigger) {
  bindAddress(props, (data) => trigger("select", data));
  acceptImages(props.terms.drop, (dropped) => trigger("select", { dropped }));
  countExplained();
  markOutdated();
}
