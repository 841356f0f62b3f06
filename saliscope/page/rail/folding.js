// Which boxes the diagram has: runs of equal blocks are folded into one box where there is not enough width.

const FEW = 6; // a network with fewer boxes shows more than one box of its longest run
export const LEAST_BOXES = 6; // a narrow diagram scrolls instead of folding more

/**
 * @typedef {object} Item a box of the diagram
 * @property {number} first the first block
 * @property {number} last the last block, which represents the box
 * @property {number} run the number of its run
 * @property {boolean} folded whether it stands for several blocks
 * @property {boolean} spatial whether its output has a height and a width
 */

/**
 * Return the runs of consecutive blocks with outputs of the same size; a block without a grid is a run.
 * @returns {{first: number, last: number, spatial: boolean}[]}
 */
export function runsOf({ blocks, layers }) {
  const runs = [];
  blocks.forEach(({ out }, block) => {
    const { height, width, channels } = layers[out],
      size = [height, width, channels].join(),
      run = runs.at(-1);
    if (height && run?.size === size) run.last = block;
    else runs.push({ first: block, last: block, size, spatial: height > 0 });
  });
  return runs;
}

const lengthOf = ({ first, last }) => last - first + 1;

/** Divide a run into boxes of about equal length; the first ones are longer. */
function divide({ first, last, spatial }, run, parts) {
  const blocks = last - first + 1;
  return Array.from({ length: parts }, (_, k) => {
    const [start, end] = [k, k + 1].map((part) => first + Math.ceil((part * blocks) / parts));
    return { first: start, last: end - 1, run, folded: end - start > 1, spatial };
  });
}

/**
 * Return the boxes for a diagram with space for `space` of them; opened runs may need more.
 * @param {ReturnType<typeof runsOf>} runs
 * @param {number} space
 * @param {Set<number>} opened the runs that the user has opened
 * @returns {Item[]}
 */
export function itemsOf(runs, space, opened) {
  const parts = runs.map(() => 1),
    spatial = runs.map((_, k) => k).filter((k) => runs[k].spatial);
  let left = space - spatial.length;
  const byLength = spatial.sort((a, b) => lengthOf(runs[a]) - lengthOf(runs[b]) || a - b);
  for (const k of byLength) {
    if (lengthOf(runs[k]) - 1 > left) break;
    left -= lengthOf(runs[k]) - 1;
    parts[k] = lengthOf(runs[k]);
  }
  const longest = byLength.at(-1);
  const isFolded = longest !== undefined && parts[longest] < lengthOf(runs[longest]);
  if (isFolded && left > 0 && space - left < FEW) parts[longest] += left;
  return runs.flatMap((run, k) => divide(run, k, opened.has(k) ? lengthOf(run) : parts[k]));
}
