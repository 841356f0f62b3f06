// Stores the open channel and the order of the tiles in the address. A channel from a link opens as soon as the tiles are loaded.
import { bindParameters } from "../shared/address.js";
import { countChannels, isOutdated, open } from "./state.js";
import { state, subscribe } from "../store.js";

let wanted = null;

function openWanted() {
  if (wanted === null || !countChannels() || isOutdated()) return;
  const number = wanted;
  wanted = null;
  if (number < countChannels() && number !== state.channels.number) open(number);
}

/** Bind the order of the tiles to the address; `sort` sorts them again. */
export function bindSort(tools, sort) {
  bindParameters(
    ["sort"],
    () => ({ sort: tools.sortInAddress }),
    ({ sort: name }) => {
      tools.sort(tools.canRestore(name) ? name : tools.options[0].value);
      sort();
    },
  );
}

/** Bind the open channel to the address. */
export function bindChannel() {
  const changed = bindParameters(
    ["channel"],
    () => ({ channel: String(wanted ?? state.channels.number ?? "") }),
    ({ channel = "" }) => {
      wanted = /^\d{1,6}$/.test(channel) ? Number(channel) : null;
      if (wanted === null && state.channels.number !== null) open(null);
      else openWanted();
    },
  );
  subscribe(["channels", "question"], () => {
    openWanted();
    changed();
  });
}
