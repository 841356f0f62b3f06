// Names and images of channels from an index: on tiles, and for the search.
import { make } from "../wire.js";

/** Return the name of a channel and its test; empty if it has none. */
export function labelUnit(sheet, number) {
  return { name: sheet?.units?.names[number] || "", test: sheet?.units?.tests[number] || "" };
}

/** Add the name of a channel to its tile; its test is in the tooltip and for screen readers. */
export function addName(tile, sheet, number) {
  const { name, test } = labelUnit(sheet, number);
  if (!name) return;
  tile.title = `${name}, ${test}`;
  tile.append(make("em", {}, make("span", { class: "hl-spoken", text: ", " }), name));
  tile.lastElementChild.append(make("span", { class: "hl-spoken", text: `, ${test}` }));
}

/** Return the channels whose name does not contain the text, and whose number does not start with it. */
export function findOthers(sheet, text) {
  const word = text.trim().toLowerCase(),
    others = [];
  for (let number = 0; word && number < sheet.total; number++) {
    const { name } = labelUnit(sheet, number);
    if (!name.toLowerCase().includes(word) && !String(number).startsWith(word)) others.push(number);
  }
  return others;
}

/** Draw the image of a channel from the sprite of its layer. */
export function drawImage(canvas, { side, across }, sprite, number) {
  [canvas.width, canvas.height] = [side, side];
  const from = [side * (number % across), side * Math.floor(number / across)];
  canvas.getContext("2d", { willReadFrequently: true }).drawImage(sprite, ...from, side, side, 0, 0, side, side);
}
