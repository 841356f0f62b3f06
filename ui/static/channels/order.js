// In which order the channels stand, from the figures of all of them.
import { floats } from "../wire.js";

/** The packed figures among a value's fields, unpacked. */
export function figures(value) {
  const found = {};
  for (const [name, packed] of Object.entries(value)) {
    if (packed && packed.dtype && !["lo", "hi"].includes(name)) found[name] = floats(packed);
  }
  return found;
}

/** The numbers of all channels but the `hidden` ones: largest figure first, those without one last; or by number. */
export function ordered(total, values, kind, hidden) {
  const out = new Set(hidden), order = [];
  for (let number = 0; number < total; number++) if (!out.has(number)) order.push(number);
  if (kind === "number") return order;
  const size = (number) => (Number.isNaN(values[number]) ? -Infinity : values[number]);
  return order.sort((a, b) => (size(a) === size(b) ? a - b : size(b) > size(a) ? 1 : -1));
}

/** Three digits of a figure below a tile. */
export function figure(value) {
  const size = Math.abs(value), text = size && (size < 1e-3 || size >= 1e4) ? size.toExponential(1) : size ? size.toPrecision(3) : "0";
  return (value < 0 ? "−" : "") + text;
}
