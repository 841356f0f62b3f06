// Asks for the gradient norms of a question once its map is there and the rail is in sight; none is asked for twice.
import { keep, publish, store } from "./store.js";
import { follow } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const rail = () => document.getElementById("hl-strip");
  const state = (text) => { if (rail()) rail().dataset.norms = text; };
  let asked = null;
  const ask = () => {
    const key = store.wanted;
    if (!key || asked === key || store.norms.has(key) || !rail()?.checkVisibility()) return;
    asked = key;
    state("asked");                                     // tests wait while it says so
    trigger("focus", { key });
  };
  new IntersectionObserver(ask).observe(element);
  follow(props, watch, ["value"], () => {
    const value = props.value;
    if (!value) return;
    if (value.norms) keep(value.key, value);
    if (value.norms || value.failed) {
      if (value.failed || value.key === asked) asked = null;
      state("shown");                                   // of another key: the visitor has chosen something else meanwhile
      publish({});
    } else if (value.chosen) {
      publish({ wanted: value.key, chosen: value.chosen, note: value.note });
    }
    if (!value.failed) ask();
  });
}
