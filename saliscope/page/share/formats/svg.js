// An SVG with embedded images and lines as paths; text stays text. Units are those of figure.js.
import { short, SvgFile } from "./svg_file.js";

export class Svg extends SvgFile {
  /**
   * @param {number} width in units
   * @param {number} height
   * @param {number} scale units of a millimeter
   * @param {string} font
   */
  constructor(width, height, scale, font) {
    super({
      width: `${short(width / scale)}mm`,
      height: `${short(height / scale)}mm`,
      viewBox: `0 0 ${short(width)} ${short(height)}`,
    });
    this.font = font;
  }

  /** Draw a canvas; a `photo` is stored as JPEG. */
  image(canvas, x, y, width, height, opacity, photo = false) {
    this.add("image", {
      x,
      y,
      width,
      height,
      opacity: opacity < 1 ? opacity : undefined,
      preserveAspectRatio: "none",
      href: canvas.toDataURL(photo ? "image/jpeg" : "image/png", 0.92),
    });
  }

  box(x, y, width, height, stroke) {
    this.add("rect", { x, y, width, height, fill: "none", stroke, "stroke-width": 2 });
  }

  /** Draw lines of points from 0 to 1 within this rectangle. */
  lines(lines, [x, y, width, height], { color, thick, opacity }) {
    const path = (line) => `M${line.map(([u, v]) => `${short(x + u * width)} ${short(y + v * height)}`).join("L")}`;
    this.add("path", {
      d: lines.map(path).join(""),
      fill: "none",
      stroke: color,
      "stroke-width": thick,
      "stroke-linejoin": "round",
      "stroke-opacity": opacity,
    });
  }

  text(text, x, y, { anchor, size, fill, strong }) {
    const weight = strong ? "600" : undefined;
    const style = { "text-anchor": anchor, "font-size": size, fill, "font-family": this.font, "font-weight": weight };
    this.add("text", { x, y, ...style }, text);
  }
}
