// Tells the server that this tab is looked at while it shows other settings than the page: once for each change, when seen.
import { follow } from "./wire.js";

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
