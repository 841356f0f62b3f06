// Requests the gradient norms once the map is shown and the diagram is visible; each is requested only once.
import { change, follow, state } from "../store.js";

const MAX_NORMS = 50;

/** Store the norms of a request; the oldest ones are removed. */
function addNorms(value) {
  const all = new Map(state.rail.norms).set(value.key, value);
  change("rail", { norms: new Map([...all].slice(-MAX_NORMS)) });
}

/**
 * Keep the norms in the state.
 * @param {HTMLElement} host the element of the rail
 * @param {(key: string) => void} measure requests the norms of the current request
 */
export function followNorms(host, measure) {
  let requested = null;
  const request = () => {
    const { wanted, norms } = state.rail;
    if (!wanted || requested === wanted || norms.has(wanted) || !host.checkVisibility()) return;
    requested = wanted;
    host.dataset.norms = "asked"; // tests wait for this value
    measure(wanted);
  };
  const receive = () => {
    const { gradients: value } = state;
    if (value.norms) addNorms(value);
    if (value.norms || value.failed) {
      if (value.failed || value.key === requested) requested = null;
      host.dataset.norms = "shown"; // for another key: the user has selected something else in the meantime
    } else if (value.chosen) change("rail", { wanted: value.key, chosen: value.chosen, note: value.note });
    if (!value.failed) request();
  };
  new IntersectionObserver(request).observe(host);
  follow("gradients", receive);
}
