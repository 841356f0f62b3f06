// Carries the drawing of the network to the rail; sent once for each network.
import { publish } from "./store.js";
import { follow } from "../wire.js";

export function mount(element, props, trigger, watch) {
  follow(props, watch, ["value"], () => {
    if (!props.value) return;
    const { aliases, whys, layers, ...rest } = props.value;
    const names = { ...Object.fromEntries(layers.map(([name], k) => [name, k])), ...aliases };
    publish({ network: { ...rest, names, layers: layers.map((layer) => layer.with(5, whys[layer[5]])) } });
  });
}
