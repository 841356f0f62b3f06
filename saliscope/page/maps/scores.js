// The scores of all classes: their ranks, and the most likely ones.
import { floats, formatShare } from "../wire.js";

/**
 * @typedef {{values: Float32Array, isShare: boolean}} Scores probabilities of all classes, or their scores if the
 *   network has no probabilities
 */

/**
 * Unpack the scores of an answer.
 * @param {{all: Record<string, any>, items: {text?: string}[]}} value
 * @returns {Scores}
 */
export function scoreOf({ all, items }) {
  return { values: floats(all), isShare: items[0]?.text === undefined };
}

/** Return the text of a score. */
export function formatScore({ values, isShare }, index) {
  return isShare ? formatShare(values[index]) : String(Number(values[index].toPrecision(3)));
}

/** Return the rank of a class, from 1; classes with equal scores share a rank. */
export function rankOf({ values }, index) {
  return 1 + Array.prototype.filter.call(values, (value) => value > values[index]).length;
}

/** Return the names of the classes: the list may start with choices that are not classes. */
export function namesOf({ values }, classes) {
  return classes.slice(classes.length - values.length).map(({ value }) => value);
}

/**
 * Return the classes with the highest scores, as items of the list of predictions.
 * @param {Scores} scores
 * @param {{value: string}[]} classes
 * @param {number} count
 */
export function topClasses(scores, classes, count) {
  const { values, isShare } = scores,
    names = namesOf(scores, classes),
    order = Array.from(values.keys()).sort((a, b) => values[b] - values[a] || a - b),
    largest = Math.max(...order.slice(0, count).map((index) => Math.abs(values[index]))) || 1;
  return order.slice(0, count).map((index) => ({
    index,
    name: names[index],
    share: isShare ? values[index] : Math.max(0, values[index] / largest),
    text: formatScore(scores, index),
  }));
}
