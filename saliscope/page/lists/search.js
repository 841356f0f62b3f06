// Search in a list of names: which items match the typed text, in which order, and which of their letters match.

/**
 * @typedef {object} Item
 * @property {string} label the name in the field, with details after " · "
 * @property {string} value the name in requests, such as "resnet101" for "ResNet-101"
 * @property {string[]} [columns] what the list shows; the label by default
 * @property {string} [group] title of its group
 * @property {string} [line] a description
 * @property {string} [words] keywords that find it
 * @property {[string, string][]} [badges] texts and their explanations
 * @property {string} [why] why it cannot be selected
 */

const decompose = (text) => String(text).toLowerCase().normalize("NFKD");
/** Return only letters and digits: "gradcam" for "Grad-CAM", "cafe" for "café". */
const fold = (text) => decompose(text).replace(/[^\p{L}\p{N}+]+/gu, "");
const split = (text) =>
  decompose(text || "")
    .replace(/\p{M}+/gu, "")
    .split(/[^\p{L}\p{N}+]+/u)
    .filter(Boolean);
const prepared = new WeakMap();

function prepare(item) {
  if (!prepared.has(item)) {
    const title = item.label.split(" · ")[0],
      names = [title, item.value].map(split);
    prepared.set(item, {
      names: names.map((words) => words.join("")),
      starts: names.flatMap((words) => words.map((_, k) => words.slice(k).join(""))),
      keywords: split(item.words),
      others: [...split(item.words), ...split(item.line), ...split(item.group)],
      text: split(`${item.label} ${item.value}`).join(" "),
    });
  }
  return prepared.get(item);
}

/** Return how well an item matches: 0 not at all, 6 exactly. */
function rank(item, typed) {
  const { names, starts, keywords, others, text } = prepare(item),
    wanted = fold(typed);
  if (!wanted) return item.label.toLowerCase().includes(typed.trim().toLowerCase()) ? 1 : 0; // only symbols
  if (names.includes(wanted)) return 6;
  if (keywords.includes(wanted)) return 5;
  if (starts.some((start) => start.startsWith(wanted))) return 4;
  if (keywords.some((word) => word.startsWith(wanted))) return 3;
  if (names.some((name) => name.includes(wanted))) return 2;
  const isFound = (token) => text.includes(token) || others.some((word) => word.startsWith(token));
  return split(typed).every(isFound) ? 1 : 0;
}

/**
 * Return the matching items: the exact name, then an exact keyword, then names with a word that starts with the text,
 * then other matches. Equal matches keep the order of the list, and items that cannot be selected come last.
 * @param {Item[]} items
 * @param {string} typed
 * @returns {Item[]}
 */
export function search(items, typed) {
  const found = typed.trim() ? items.filter((item) => rank(item, typed)) : [...items],
    ranks = new Map(typed.trim() ? found.map((item) => [item, rank(item, typed)]) : []);
  return found.sort(
    (a, b) => Number(Boolean(a.why)) - Number(Boolean(b.why)) || (ranks.get(b) || 0) - (ranks.get(a) || 0),
  );
}

/**
 * Return a text in pieces, and for each piece whether it matches the typed text or one of its words.
 * @param {string} text
 * @param {string} typed
 * @returns {[string, boolean][]}
 */
export function highlight(text, typed) {
  let letters = "";
  const places = []; // start and end in the text of each letter
  for (const { 0: sign, index } of text.matchAll(/./gsu)) {
    const folded = fold(sign);
    letters += folded;
    for (let k = 0; k < folded.length; k++) places.push([index, index + sign.length]);
  }
  const isMarked = Array.from({ length: text.length }, () => false),
    isStart = (at) => at === 0 || places[at][0] > places[at - 1][1] || /\P{L}/u.test(text[places[at][0] - 1]);
  const mark = (part) => {
    const found = [];
    for (let at = letters.indexOf(part); part && at >= 0; at = letters.indexOf(part, at + 1)) found.push(at);
    const at = found.find(isStart) ?? found[0];
    if (at !== undefined) isMarked.fill(true, places[at][0], places[at + part.length - 1][1]);
    return at !== undefined;
  };
  if (!mark(fold(typed))) split(typed).forEach(mark);
  const pieces = [];
  for (let from = 0, to = 0; from < text.length; from = to) {
    while (to < text.length && isMarked[to] === isMarked[from]) to++;
    pieces.push([text.slice(from, to), isMarked[from]]);
  }
  return pieces;
}
