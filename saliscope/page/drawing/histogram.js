// Histogram of a map on the axis of its color bar: bins from the low to the high end, each above its own color.
import { fill, make, formatValue } from "../wire.js";

const BINS = 64;

/** Count `values` in equal bins from `low` to `high`; values outside count in the last bin at their end, as colored. */
function counts(values, low, high, bins = BINS) {
  const found = new Array(bins).fill(0),
    scale = bins / (high - low);
  for (const v of values)
    if (Number.isFinite(v)) found[Math.min(bins - 1, Math.max(0, Math.floor((v - low) * scale)))] += 1;
  return found;
}

/**
 * Draw the histogram; bar heights are square roots of the counts, because the zeros of a ReLU would hide everything
 * else.
 * @param {HTMLElement} host
 * @param {import("./field.js").Field} map
 * @param {import("./paint.js").Rendering} rendering
 * @param {boolean} magnitudes
 * @param {string} description text with {count}, {low} and {high}
 */
export function chart(host, map, rendering, magnitudes, description) {
  const values = magnitudes ? map.values.map(Math.abs) : map.values;
  const found = counts(values, rendering.low, rendering.high),
    most = Math.sqrt(Math.max(...found, 1));
  host.replaceChildren(
    ...found.map((count) => make("i", { style: `height:${(100 * Math.sqrt(count)) / most}%`, "data-count": count })),
  );
  const numbers = { count: values.length, low: formatValue(rendering.low), high: formatValue(rendering.high) };
  host.setAttribute("aria-label", fill(description, numbers));
}
