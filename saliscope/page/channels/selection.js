// The selected channels, and their text: "3, 17-24".
import { change, state } from "../store.js";
import { fill } from "../wire.js";

const PART = /^(\d{1,7})(?:\s*[-–]\s*(\d{1,7}))?$/;
let anchor = null; // where a range starts: the channel that was selected last

/** Select exactly these channels. */
export function select(numbers) {
  change("channels", { selected: [...new Set(numbers)].sort((a, b) => a - b), selecting: true });
}

/** Select or deselect one channel. */
export function toggle(number) {
  const { selected } = state.channels;
  anchor = number;
  select(selected.includes(number) ? selected.filter((each) => each !== number) : [...selected, number]);
}

/** Select all tiles from the last one, or from the open one, to this one. */
export function extend(number) {
  const { order, selected, number: opened } = state.channels;
  const [from, to] = [anchor ?? opened ?? number, number].map((each) => order.indexOf(each));
  anchor = number;
  if (from < 0 || to < 0) return select([...selected, number]);
  select([...selected, ...order.slice(Math.min(from, to), Math.max(from, to) + 1)]);
}

/** Return the text of channels in ascending order. */
export function formatChannels(numbers) {
  const parts = [];
  for (let start = 0, end; start < numbers.length; start = end + 1) {
    end = start;
    while (numbers[end + 1] === numbers[end] + 1) end += 1;
    if (end - start < 2) parts.push(...numbers.slice(start, end + 1));
    else parts.push(`${numbers[start]}-${numbers[end]}`);
  }
  return parts.join(", ");
}

/**
 * Parse a text such as "3, 17-24", as `parse_channels` in saliscope/compute/interventions/changes.py.
 * @param {string} text
 * @param {{total: number, layer: string}} sheet
 * @param {Record<string, any>} terms
 * @returns {{numbers?: number[], error?: string}}
 */
export function parseChannels(text, { total, layer }, terms) {
  const numbers = [];
  for (const part of text.split(",").map((each) => each.trim())) {
    if (!part) continue;
    const found = PART.exec(part),
      first = Number(found?.[1]),
      last = Number(found?.[2] ?? found?.[1]);
    if (!found || last < first) return { error: fill(terms.bad_part, { text: part.slice(0, 30) }) };
    if (last >= total) return { error: fill(terms.bad_channel, { layer, number: last, last: total - 1 }) };
    for (let number = first; number <= last; number++) numbers.push(number);
  }
  return { numbers };
}
