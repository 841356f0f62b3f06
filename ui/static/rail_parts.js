// Parts of the network rail: thumbnails of maps, arcs of skip connections, heights of bars.
import { field } from "./field.js";
import { draw, view } from "./paint.js";

const NS = "http://www.w3.org/2000/svg";
export const SIDE = 64 * Math.min(3, Math.ceil(window.devicePixelRatio || 1));

/** Draw a packed map over the photograph into a canvas. */
export function thumbnail(canvas, image, packed) {
  const high = Math.max(1, Math.round(image && image.naturalWidth ? (SIDE * image.naturalHeight) / image.naturalWidth : SIDE));
  canvas.width = SIDE;
  canvas.height = high;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#808080";
  context.fillRect(0, 0, SIDE, high);
  if (image) context.drawImage(image, 0, 0, SIDE, high);
  const pixels = context.getImageData(0, 0, SIDE, high);
  draw(pixels.data, SIDE, high, view(field(packed)));
  context.putImageData(pixels, 0, 0);
}

/** Arcs [start, end, projected] over blocks whose boxes are `spans` of [left, right], in an SVG of this size. */
export function arcs(svg, found, spans, width, height) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  const at = (place, ends) => {
    const k = Math.min(spans.length - 1, ends ? Math.max(0, Math.ceil(place) - 1) : Math.floor(place));
    const [left, right] = spans[k];
    return left + (place - k) * (right - left);
  };
  const longest = Math.max(1, ...found.map(([start, end]) => end - start));
  svg.replaceChildren(...found.map(([start, end, projected]) => {
    const a = at(start, false) + 1.5, b = at(end, true) - 1.5, y = height - 1;
    const part = longest > 1 ? Math.log(Math.max(1, end - start)) / Math.log(longest) : 0;
    const top = Math.max(1.5, y - Math.min(0.45 * height + 0.5 * height * part, 0.5 * height * part + 1.1 * (b - a)));
    const bend = Math.min(14, (b - a) / 2);
    const path = document.createElementNS(NS, "path");
    path.setAttribute("d", `M${a} ${y}C${a} ${top} ${a} ${top} ${a + bend} ${top}H${b - bend}C${b} ${top} ${b} ${top} ${b} ${y}`);
    if (projected) path.setAttribute("class", "hl-rail-projected");
    return path;
  }));
}

/** From the norms to heights between 0 and 1: logarithmic over a decade at least and four at most. */
export function heights(norms) {
  const known = norms.filter((norm) => norm > 0);
  const most = Math.max(...known), least = Math.max(most / 1e4, Math.min(most / 10, ...known));
  return norms.map((norm) => (norm > 0 ? 0.12 + 0.88 * Math.max(0, Math.log(norm / least) / Math.log(most / least)) : norm === 0 ? 0 : null));
}
