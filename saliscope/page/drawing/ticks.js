// Round values on the axis of a color bar.
import { formatValue } from "../wire.js";

/** Return the round number (1, 2 or 5 times a power of ten) at or above a value. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((factor) => factor * power >= value * (1 - 1e-9)) || 10);
}

/**
 * Return round values (1, 2 or 5 times a power of ten) between `low` and `high`, and their positions from 0 to 1.
 * @param {number} low
 * @param {number} high
 * @param {number} most
 * @returns {{value: number, at: number}[]}
 */
export function roundTicks(low, high, most = 5) {
  if (!(high > low) || !Number.isFinite(high - low)) return [];
  const step = roundUp((high - low) / most),
    first = Math.ceil(low / step - 1e-9),
    last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => {
    const value = Number(((first + k) * step).toPrecision(12));
    return { value: value || 0, at: (value - low) / (high - low) };
  });
}

/**
 * Return the outermost ticks of a color bar as text, which say whether colors saturate there.
 * @param {import("./paint.js").Rendering} rendering
 * @returns {{text: string, at: number}[]}
 */
export function endTicks({ low, high, clipped, colors }) {
  return [
    { text: `${clipped && colors === "signed" ? "≤ " : ""}${formatValue(low)}`, at: 0 },
    { text: `${clipped ? "≥ " : ""}${formatValue(high)}`, at: 1 },
  ];
}

/**
 * Return the ticks of a color bar as text.
 * @param {import("./paint.js").Rendering} rendering
 * @returns {{text: string, at: number}[]}
 */
export function ticksOf(rendering) {
  const [first, last] = endTicks(rendering);
  const ticks = roundTicks(rendering.low, rendering.high).map(({ value, at }) => ({ text: formatValue(value), at }));
  return [first, ...ticks.filter(({ at }) => at > 0.14 && at < 0.86), last];
}
