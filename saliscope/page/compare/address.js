// The comparison in the address: the settings of each panel and of the drawing. Links are untrusted, so values are
// validated.
import { bindParameters } from "../shared/address.js";

const NAMES = ["panel1", "panel2", "panel3", "panel4", "drawn", "pair"];
const SETTINGS = ["method", "target", "layer", "model"];
const MAX_LENGTH = 200; // characters of a parameter
const DEFAULT = "page"; // a panel that follows the page
const DEFAULT_PAIR = "A-B";
const DEFAULT_PANELS = JSON.stringify([DEFAULT, "runner=1&classed=1"]);

function toText({ own, runner, classed, score }) {
  const query = new URLSearchParams();
  for (const name of SETTINGS) if (own[name] !== undefined) query.set(name, own[name]);
  for (const [name, value] of Object.entries({ runner, classed })) if (value) query.set(name, "1");
  if (score !== undefined) query.set("score", score);
  const text = query.toString() || DEFAULT;
  return text.length <= MAX_LENGTH ? text : DEFAULT;
}

function fromText(text) {
  const query = new URLSearchParams(text),
    score = parseFloat(query.get("score"));
  const own = Object.fromEntries(SETTINGS.filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  return {
    own,
    runner: query.get("runner") === "1",
    classed: query.get("classed") === "1",
    score: score >= 0.01 && score <= 1 ? score : undefined,
  };
}

/** Bind the board's state to the address; returns a function to call after every change. */
export function bindBoard(board) {
  const writeBoard = (values, coming) => {
    board.coming = coming && Boolean(board.page.image);
    const panels = NAMES.slice(0, 4)
      .map((name) => values[name])
      .filter(Boolean);
    const wanted = panels.length ? panels : JSON.parse(DEFAULT_PANELS);
    if (JSON.stringify(board.panels.map(toText)) !== JSON.stringify(wanted)) board.restore(wanted.map(fromText));
    board.tools.restore(new URLSearchParams(values.drawn || ""));
    board.pair.select(values.pair || DEFAULT_PAIR);
  };
  const readBoard = () => {
    const panels = board.panels.map(toText),
      own = JSON.stringify(panels) === DEFAULT_PANELS ? [] : panels;
    const { name: pair } = board.pair;
    return {
      ...Object.fromEntries(own.map((text, k) => [NAMES[k], text])),
      drawn: board.tools.toQuery().toString(),
      pair: pair === DEFAULT_PAIR || !pair.includes("-") ? "" : pair,
    };
  };
  return bindParameters(NAMES, readBoard, writeBoard);
}
