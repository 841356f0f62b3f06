// The histogram of a map on the axis of its colour bar: bins from the bar's low end to its high end, each above its own colour.
import { make, short } from "../wire.js";

const BINS = 64;

/** Counts of `values` in equal bins from `low` to `high`; what lies beyond counts in the last bin at its end, as it is coloured. */
export function counts(values, low, high, bins = BINS) {
  const found = new Array(bins).fill(0), scale = bins / (high - low);
  for (const v of values) if (Number.isFinite(v)) found[Math.min(bins - 1, Math.max(0, Math.floor((v - low) * scale)))] += 1;
  return found;
}

/** Draw into `chart`; heights go by the square root of the count, else the zeros of a ReLU would hide all other values. */
export function chart(host, map, look, magnitudes) {
  const values = magnitudes ? map.values.map(Math.abs) : map.values;
  const found = counts(values, look.low, look.high), most = Math.sqrt(Math.max(...found, 1));
  host.replaceChildren(...found.map((count) => make("i", { style: `height:${(100 * Math.sqrt(count)) / most}%`, "data-count": count })));
  host.setAttribute("aria-label", `Histogram of ${values.length} values from ${short(look.low)} to ${short(look.high)}, on the axis of the colours; `
    + "heights by the square root of the count");
}
