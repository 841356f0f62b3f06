// The comparison in the address: what each panel has of its own, and how all are drawn. Anybody's link may say anything.
import { keep } from "../page/address.js";

const NAMES = ["panel1", "panel2", "panel3", "panel4", "drawn"];
const OWN = ["method", "target", "layer", "model"];
const LONGEST = 200;                                     // characters of a parameter
const PLAIN = "page";                                    // a panel with nothing of its own
const FIRST = JSON.stringify([PLAIN, "runner=1&classed=1"]);

function written({ own, runner, classed, score }) {
  const query = new URLSearchParams();
  for (const name of OWN) if (own[name] !== undefined) query.set(name, own[name]);
  for (const [name, value] of Object.entries({ runner, classed })) if (value) query.set(name, "1");
  if (score !== undefined) query.set("score", score);
  const text = query.toString() || PLAIN;
  return text.length <= LONGEST ? text : PLAIN;
}

function read(text) {
  const query = new URLSearchParams(text), score = parseFloat(query.get("score"));
  const own = Object.fromEntries(OWN.filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  return { own, runner: query.get("runner") === "1", classed: query.get("classed") === "1",
    score: score >= 0.01 && score <= 1 ? score : undefined };
}

/** Keep the board's state; gives the function that it calls after every change. */
export function remember(board) {
  const put = (values, coming) => {
    board.coming = coming && Boolean(board.page.picture);
    const panels = NAMES.slice(0, 4).map((name) => values[name]).filter(Boolean);
    const wanted = panels.length ? panels : JSON.parse(FIRST);
    if (JSON.stringify(board.panels.map(written)) !== JSON.stringify(wanted)) board.restore(wanted.map(read));
    board.tools.restore(new URLSearchParams(values.drawn || ""));
  };
  const take = () => {
    const panels = board.panels.map(written), drawn = board.tools.written().toString();
    return { ...(JSON.stringify(panels) === FIRST ? {} : Object.fromEntries(panels.map((text, k) => [NAMES[k], text]))), ...(drawn ? { drawn } : {}) };
  };
  return keep(NAMES, take, put);
}
