// Texts about clicking and hovering for a screen that is touched.

const RULES = [
  [/Drop an image here\\nor click to choose one/g, "Tap to choose an image"],
  [/Hover to preview, click to select/g, "Tap to select"],
  [/Hover, touch or use/g, "Touch or use"],
  [/click tiles, or Shift-click for a range/g, "tap tiles"],
  [/Hover over /g, "Tap "],
  [/Hover to /g, "Tap to "],
  [/Click a /g, "Tap a "],
];

/** Return a fixed text of the page, or several as JSON, in the words of the pointer that the visitor uses. */
export function forPointer(text) {
  if (!matchMedia("(pointer: coarse)").matches) return text;
  return RULES.reduce((found, [pattern, word]) => found.replace(pattern, word), text);
}
