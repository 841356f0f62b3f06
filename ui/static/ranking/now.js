// What the page explains now: a ranking of something else is marked as such.
import { follow } from "../wire.js";

export const now = { subject: "", method: "", layer: "", heard: new Set() };

export function mount(element, props, trigger, watch) {
  follow(props, watch, ["value"], () => {
    if (!props.value || props.value.id <= (now.id || 0)) return;
    Object.assign(now, props.value);
    for (const hear of now.heard) hear();
  });
}
