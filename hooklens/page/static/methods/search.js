// Ranks methods for a search: exact names first, then prefixes, then words of the description.

/** @typedef {{name: string, title: string, group: string, line: string, words: string}} Method */

const letters = (text) =>
  text
    .toLowerCase()
    .normalize("NFKD")
    .replace(/[^a-z0-9+]+/g, "");
const parts = (text) =>
  text
    .toLowerCase()
    .normalize("NFKD")
    .split(/[^a-z0-9+]+/)
    .filter(Boolean);

/**
 * Return 0 for no match; higher is better.
 * @param {Method} method
 * @param {string} query
 * @param {string} group title of the method's group
 * @returns {number}
 */
export function rankMethod(method, query, group = "") {
  const wanted = letters(query),
    tokens = parts(query);
  if (!wanted) return query.trim() ? 0 : 1; // only punctuation or another script: no match
  const names = [letters(method.title), letters(method.name)],
    titled = parts(method.title),
    known = parts(method.words);
  if (names.includes(wanted)) return 7;
  if (known.includes(wanted)) return 6;
  if (names.some((name) => name.startsWith(wanted))) return 5;
  if (titled.some((word) => word.startsWith(wanted))) return 4;
  if (known.some((word) => word.startsWith(wanted))) return 3;
  if (names.some((name) => name.includes(wanted))) return 2;
  const all = [...titled, ...parts(method.name), ...known, ...parts(method.line), ...parts(group)];
  return tokens.every((token) => all.some((word) => word.startsWith(token))) ? 1 : 0;
}

/**
 * Return the matching methods, best first; ties keep the order of the list.
 * @param {Method[]} methods
 * @param {string} query
 * @param {Record<string, string>} groups titles of the groups by name
 * @returns {Method[]}
 */
export function searchMethods(methods, query, groups = {}) {
  return methods
    .map((method) => ({ method, score: rankMethod(method, query, groups[method.group]) }))
    .filter(({ score }) => score > 0)
    .sort((a, b) => b.score - a.score)
    .map(({ method }) => method);
}
