// What the rail's components share: the network, the gradient norms by question, and the layer that is shown.
const KEPT = 50;
const drawings = new Set();

export const store = { network: null, wanted: null, chosen: null, note: "", norms: new Map() };

/** Change some of it, and have it drawn. */
export function publish(changes) {
  Object.assign(store, changes);
  for (const draw of drawings) draw(changes);
}

/** Keep the norms of a question; the oldest are forgotten. */
export function keep(key, norms) {
  store.norms.set(key, norms);
  if (store.norms.size > KEPT) store.norms.delete(store.norms.keys().next().value);
}

/** Call `draw(changes)` at every change. */
export function subscribe(draw) {
  drawings.add(draw);
}
