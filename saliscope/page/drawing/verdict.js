// The verdict on a map: the one after the tests of the newest map, or the one that came with the answer.
import { state } from "../store.js";

/**
 * @param {{key?: string, verdict?: string}} value an answer
 * @returns {string}
 */
export function verdictOf({ key, verdict = "" }) {
  return key && state.checked?.key === key ? state.checked.sentence : verdict;
}
