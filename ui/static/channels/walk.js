// What the tab of channels shows, and whether that is still the question's: its parts tell each other here.
export const walk = {
  about: "", whom: "",                                   // of the tiles: picture, network and layer; class
  key: 0, now: 0,                                        // the numbers of the tiles' answer, and of the newest question
  total: 0, order: [],                                   // how many channels there are; those listed, in their order
  number: null,                                          // the channel that was opened
};
const listeners = new Set();
let ask = () => {};

/** Call `listener` after every change; returns what ends that. */
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function update(fields) {
  Object.assign(walk, fields);
  for (const listener of [...listeners]) listener();
}

/** Whether the tiles are those of a former question. */
export function old() {
  return walk.now > walk.key;
}

/** The grid says how a channel is asked for. */
export function asking(asker) {
  ask = asker;
}

/** Open a channel; null closes the open one. */
export function open(number) {
  update({ number });
  if (number !== null) ask(number);
}

/** The channel `step` places further in the order of the tiles. */
export function beside(step) {
  const at = walk.order.indexOf(walk.number), count = walk.order.length;
  if (at >= 0) return walk.order[(at + step + count) % count];
  return walk.total ? ((walk.number ?? -1) + step + walk.total) % walk.total : null;
}
