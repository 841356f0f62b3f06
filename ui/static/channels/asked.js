// Tells the tab of channels that a question was asked ("now"), and raises "focus" once for its answer ("key"), as soon
// as the tab is in front, with what is shown there already.
import { follow } from "../wire.js";
import { update, walk } from "./walk.js";

export function mount(element, props, trigger, watch) {
  let asked = null;
  const look = () => {
    const { key, now } = props.value || {};
    if (now) update({ now: Math.max(walk.now, now) });
    if (!key || key === asked || !element.checkVisibility()) return;
    asked = key;
    trigger("focus", { key, about: walk.about, whom: walk.whom, number: walk.number ?? -1 });
  };
  new IntersectionObserver(look).observe(element);
  follow(props, watch, ["value"], look);
}
