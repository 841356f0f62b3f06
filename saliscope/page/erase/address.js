// The edit in the address. Links are untrusted: the server checks the edit.
import { bindParameters } from "../shared/address.js";

const NAMES = ["edit", "second"];
const OWN = "own"; // a second image that was uploaded

/** Bind the edit of the board to the address; returns a function to call after every change. */
export function bindEdit(board, most) {
  const read = () => {
    const { text, second } = board.current;
    if (!text || text.length > most) return {};
    const isUsed = text.includes("fill.image");
    return { edit: text, second: isUsed ? second?.example || (second && OWN) : "" };
  };
  const write = ({ edit = "", second = "" }) => {
    const { current } = board,
      given = second === OWN ? (current.second?.file ? current.second : { gone: true }) : second && { example: second };
    if (edit !== current.text) board.restore(edit, given || null);
  };
  return bindParameters(NAMES, read, write);
}
