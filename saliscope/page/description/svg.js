// The network diagram as an SVG file: boxes, maps, skip connections and labels where the page shows them.
import { SvgFile } from "../share/formats/svg_file.js";

const INK = "#1b1b1f",
  QUIET = "#5c5c66",
  PAPER = "#ffffff",
  FILL = "#f4f4f5",
  ACCENT = "#5b5bd6";
const TEXT = 12, // pixels of the text
  LINE = 14, // pixels of a line of text
  CHARACTER = 7, // pixels of a character on average
  MARGIN = 8;

/** Creates elements of the file at positions relative to the diagram. */
class Drawing extends SvgFile {
  constructor(track) {
    const [width, height] = [track.scrollWidth, track.scrollHeight].map((side) => side + 2 * MARGIN);
    super({
      width,
      height,
      viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`,
      "font-size": TEXT,
      "font-family": "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif",
    });
    const { left, top } = track.getBoundingClientRect();
    this.left = left;
    this.top = top;
    this.add("rect", { x: -MARGIN, y: -MARGIN, width, height, fill: PAPER });
  }

  /** Return the position of an element in the diagram. */
  place(element) {
    const { left, top, width, height } = element.getBoundingClientRect();
    return { x: left - this.left, y: top - this.top, width, height };
  }

  box(element) {
    const style = getComputedStyle(element),
      isChosen = element.getAttribute("aria-pressed") === "true",
      at = this.place(element);
    const dashes = style.borderStyle.includes("dashed") ? "4 3" : undefined,
      radius = style.borderRadius.endsWith("%") ? at.width / 2 : 5;
    const [stroke, thick] = isChosen ? [ACCENT, 3] : [QUIET, 1.5];
    this.add("rect", { ...at, rx: radius, fill: FILL, stroke, "stroke-width": thick, "stroke-dasharray": dashes });
    for (const canvas of element.querySelectorAll("canvas"))
      if (canvas.width) this.add("image", { ...this.place(canvas), href: canvas.toDataURL("image/png") });
  }

  /** Write the lines of an element below each other, centered. */
  text(element, lines, ink = INK, weight = undefined) {
    const { x, y, width } = this.place(element);
    lines.forEach((line, k) => {
      const at = { x: x + width / 2, y: y + TEXT + LINE * k, "text-anchor": "middle" };
      this.add("text", { ...at, fill: ink, "font-weight": weight }, line);
    });
  }
}

/** Break a text into lines of this width in pixels. */
function wrap(text, width) {
  const lines = [];
  for (const word of text.split(" ")) {
    const joined = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && joined.length * CHARACTER <= width) lines[lines.length - 1] = joined;
    else lines.push(word);
  }
  return lines;
}

/**
 * Return the diagram as an SVG file.
 * @param {HTMLElement} track the element with the boxes, which must be visible
 */
export function diagramSvg(track) {
  const drawing = new Drawing(track),
    all = (selector) => [...track.querySelectorAll(selector)].filter((each) => each.checkVisibility());
  for (const path of all("svg > path")) {
    const projected = path.classList.contains("hl-rail-projected");
    const dashes = projected ? "3 2" : undefined;
    drawing.add("path", { d: path.getAttribute("d"), fill: "none", stroke: QUIET, "stroke-dasharray": dashes });
  }
  for (const box of all(".hl-rail-box, .hl-rail-image, .hl-rail-score")) drawing.box(box);
  for (const badge of all(".hl-rail-badge")) {
    drawing.add("rect", { ...drawing.place(badge), rx: 9, fill: PAPER, stroke: QUIET });
    drawing.text(badge, [badge.textContent]);
  }
  for (const name of all(".hl-rail-name")) drawing.text(name, [name.textContent]);
  for (const size of all(".hl-rail-size")) {
    const lines = [...size.children].map((each) => each.textContent);
    drawing.text(size, lines.length ? lines : [size.textContent], QUIET);
  }
  for (const part of all(".hl-rail-score > *")) {
    const weight = part.tagName === "STRONG" ? 600 : undefined;
    drawing.text(part, wrap(part.textContent, part.parentElement.clientWidth), INK, weight);
  }
  return drawing.finish();
}
