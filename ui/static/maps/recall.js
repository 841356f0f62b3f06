// Tells a map's component which question was asked, so that it shows the map that it has of it until the answer comes.
import { follow } from "../wire.js";

export function mount(element, props, trigger, watch) {
  follow(props, watch, ["value"], () => {
    if (props.value) document.dispatchEvent(new CustomEvent("hl-recall", { detail: { id: props.of, key: props.value.key } }));
  });
}
