// Elements of the network rail: thumbnails of maps, arcs of skip connections, heights of bars.
import { unpackMap } from "../drawing/field.js";
import { draw, view } from "../drawing/paint.js";

const NS = "http://www.w3.org/2000/svg";
const NARROWEST = 14,
  GAP = 8; // pixels: width of a block, gap between stages
export const SIDE = 64 * Math.min(3, Math.ceil(window.devicePixelRatio || 1));

/** Draw a packed map over the image on a canvas. */
export function thumbnail(canvas, image, packed) {
  const high = Math.max(
    1,
    Math.round(image && image.naturalWidth ? (SIDE * image.naturalHeight) / image.naturalWidth : SIDE),
  );
  canvas.width = SIDE;
  canvas.height = high;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#808080";
  context.fillRect(0, 0, SIDE, high);
  if (image) context.drawImage(image, 0, 0, SIDE, high);
  const pixels = context.getImageData(0, 0, SIDE, high);
  draw(pixels.data, SIDE, high, view(unpackMap(packed)));
  context.putImageData(pixels, 0, 0);
}

/** Create the drawing of the arcs. */
export function createSvg() {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("aria-hidden", "true");
  return svg;
}

/**
 * Draw arcs [start, end, projected] over blocks with x ranges `spans` ([left, right]), from the bottom line over bars
 * of height `bars`, in an SVG of this size. Longer arcs are higher.
 */
export function arcs(svg, found, spans, width, height, bars) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  const at = (place, ends) => {
    const k = Math.max(0, Math.min(spans.length - 1, ends ? Math.ceil(place) - 1 : Math.floor(place)));
    const [left, right] = spans[k];
    return left + (place - k) * (right - left);
  };
  const longest = Math.max(2, ...found.map(([start, end]) => end - start));
  const room = height - bars;
  svg.style.opacity = found.length > 60 ? 0.68 : 0.8; // keeps dense networks readable
  svg.replaceChildren(
    ...found.map(([start, end, projected]) => {
      const a = at(start, false) + 1.5,
        b = at(end, true) - 1.5;
      const part = Math.log(Math.max(1, end - start)) / Math.log(longest);
      const top = Math.max(1.5, room - 7 - (room - 9) * part),
        bend = Math.min(26, (b - a) / 2),
        y = top + Math.min(24, bend);
      const path = document.createElementNS(NS, "path");
      path.setAttribute(
        "d",
        `M${a} ${height}V${y}Q${a} ${top} ${a + bend} ${top}H${b - bend}Q${b} ${top} ${b} ${y}V${height}`,
      );
      if (projected) path.setAttribute("class", "hl-rail-projected");
      return path;
    }),
  );
}

/**
 * Return the grid columns of the blocks and their minimum total width, for stages [first, last] in this width. Stages
 * with a label get space for it if there is enough for the blocks.
 */
export function columns(stages, wide) {
  const counts = stages.map(([first, last]) => last - first + 1),
    gaps = GAP * (stages.length - 1);
  const needs = (room) => counts.map((count) => Math.max(NARROWEST * count, room));
  const total = (all) => all.reduce((sum, each) => sum + each, gaps);
  const fitting = [72, 60, 48, 40, 34].map(needs).find((all) => total(all) <= wide) || needs(30);
  const tracks = counts.flatMap((count, k) => [
    ...(k ? [`${GAP}px`] : []),
    ...Array(count).fill(`minmax(${fitting[k] / count}px, ${Math.max(1, 2 / count)}fr)`),
  ]);
  return [tracks.join(" "), total(fitting)];
}

/** Map norms to heights between 0 and 1, logarithmically, over a factor of at least 4 and at most 10,000. */
export function heights(norms) {
  const known = norms.filter((norm) => norm > 0);
  const most = Math.max(...known),
    least = Math.max(most / 1e4, Math.min(most / 4, ...known));
  return norms.map((norm) =>
    norm > 0 ? 0.12 + 0.88 * Math.max(0, Math.log(norm / least) / Math.log(most / least)) : norm === 0 ? 0 : null,
  );
}
