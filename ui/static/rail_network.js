// Carries the drawing of the network to the rail; sent once for each network.
import { publish } from "./rail_store.js";
import { follow } from "./wire.js";

export function mount(element, props, trigger, watch) {
  follow(props, watch, ["value"], () => { if (props.value) publish({ network: props.value }); });
}
