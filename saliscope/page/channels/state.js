// The Channels tab in the state of the page.
import { request } from "../parts.js";
import { change, state } from "../store.js";

/** Return the number of channels, 0 without tiles. */
export function countChannels() {
  return state.channels.sheet?.total || 0;
}

/** Check whether the tiles belong to a former question. */
export function isOutdated() {
  return state.waiting || (state.question?.id || 0) > state.channels.key;
}

/** Open a channel; null closes the open one. */
export function open(number) {
  change("channels", { number, closed: number === null });
  if (number !== null) request("hl-grid", "select", { channel: number });
}

/** Open the first listed channel, unless one is open or the user has closed it. */
export function openFirst() {
  const { order, number, closed } = state.channels;
  if (number === null && !closed && order.length && !isOutdated()) open(order[0]);
}

/** Return the channel `step` positions further in tile order, or null. */
export function neighbor(step) {
  const { order, number } = state.channels,
    at = order.indexOf(number),
    total = countChannels();
  if (at >= 0) return order[(at + step + order.length) % order.length];
  return total ? ((number ?? -1) + step + total) % total : null;
}
