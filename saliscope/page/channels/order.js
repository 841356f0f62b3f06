// Sorts the channels by a statistic.
/** Return the channel numbers without `hidden`, largest value first and missing values last; or in numeric order. */
export function sortChannels(total, values, kind, hidden) {
  const out = new Set(hidden),
    order = [];
  for (let number = 0; number < total; number++) if (!out.has(number)) order.push(number);
  if (kind === "number") return order;
  const size = (number) => (Number.isNaN(values[number]) ? -Infinity : values[number]);
  return order.sort((a, b) => (size(a) === size(b) ? a - b : size(b) > size(a) ? 1 : -1));
}

/** Format a statistic with three digits for a tile. */
export function formatStatistic(value) {
  const size = Math.abs(value),
    text = size && (size < 1e-3 || size >= 1e4) ? size.toExponential(1) : size ? size.toPrecision(3) : "0";
  return (value < 0 ? "−" : "") + text;
}
