// How well a method answers a search: exact names first, then beginnings, then words of its line.

const letters = (text) => text.toLowerCase().normalize("NFKD").replace(/[^a-z0-9+]+/g, "");
const parts = (text) => text.toLowerCase().normalize("NFKD").split(/[^a-z0-9+]+/).filter(Boolean);

/** 0 where it does not; else the larger the better. `method` has a title, a name, words to search by, a line. */
export function rank(method, query, group = "") {
  const wanted = letters(query), tokens = parts(query);
  if (!wanted) return query.trim() ? 0 : 1;            // signs alone, or another script: no method is called so
  const names = [letters(method.title), letters(method.name)], titled = parts(method.title), known = parts(method.words);
  if (names.includes(wanted)) return 7;
  if (known.includes(wanted)) return 6;
  if (names.some((name) => name.startsWith(wanted))) return 5;
  if (titled.some((word) => word.startsWith(wanted))) return 4;
  if (known.some((word) => word.startsWith(wanted))) return 3;
  if (names.some((name) => name.includes(wanted))) return 2;
  const all = [...titled, ...parts(method.name), ...known, ...parts(method.line), ...parts(group)];
  return tokens.every((token) => all.some((word) => word.startsWith(token))) ? 1 : 0;
}

/** The methods that answer a query, the best first; those alike in the order of the list. */
export function found(methods, query, groups = {}) {
  return methods.map((method) => ({ method, score: rank(method, query, groups[method.group]) }))
    .filter(({ score }) => score > 0).sort((a, b) => b.score - a.score).map(({ method }) => method);
}
