// Raises "focus" once for every new answer, as soon as its tab is in front.
import { follow } from "../wire.js";

export function mount(element, props, trigger, watch) {
  let asked = null;
  const look = () => {
    const key = props.value && props.value.key;
    if (!key || key === asked || !element.checkVisibility()) return;
    asked = key;
    trigger("focus", { key });
  };
  new IntersectionObserver(look).observe(element);
  follow(props, watch, ["value"], look);
}
