// The colour bar below a map: its ends in units, how the drawing differs from the map, and a histogram on the same axis.
import { chart } from "../drawing/histogram.js";
import { RULE, bar } from "../drawing/paint.js";
import { make, short } from "../wire.js";

export class Scale {
  /** `histogram`: whether there is one. */
  constructor(histogram) {
    this.bar = make("canvas", { class: "hl-bar", width: 256, height: 1, role: "img" });
    this.ends = make("div", { class: "hl-ends" });
    this.drawing = make("p", { class: "hl-quiet hl-drawing", title: "The read-out and the saved array hold the map itself" });
    this.chart = histogram ? make("div", { class: "hl-chart", role: "img" }) : null;
    this.root = make("div", { class: "hl-scale" }, ...(histogram ? [this.chart] : []), this.bar, this.ends, this.drawing);
  }

  clear() {
    this.ends.replaceChildren();
    this.bar.getContext("2d").clearRect(0, 0, this.bar.width, this.bar.height);
    this.drawing.textContent = "";
    this.chart?.replaceChildren();
  }

  /** The colours of `look`; `alone` as the map without the photograph has them. */
  show(map, look, { unit, magnitudes, own, alone }) {
    const context = this.bar.getContext("2d"), pixels = context.createImageData(256, 1);
    bar(pixels.data, { ...look, alone });
    context.putImageData(pixels, 0, 0);
    const beyond = look.clipped;
    const marks = [`${beyond && look.colours === "signed" ? "≤ " : ""}${short(look.low)}`, short((look.low + look.high) / 2),
      `${beyond ? "≥ " : ""}${short(look.high)}${unit ? ` ${unit}` : ""}`];
    this.ends.replaceChildren(...marks.map((text) => make("span", { text })));
    this.bar.setAttribute("aria-label", `Colours from ${short(look.low)} to ${short(look.high)} ${unit}`);
    this.drawing.textContent = drawn(map, look, magnitudes, own);
    if (this.chart) chart(this.chart, map, look, magnitudes);
  }
}

/** How the drawing differs from the map, and what its contours are. */
function drawn(map, look, magnitudes, own) {
  const cells = look.smooth ? "" : `${map.h} × ${map.w} cells. `;
  if (!look.fine) return `${cells}Contours at ${100 * RULE.low_line}% and ${100 * RULE.high_line}% of the colour range.`;
  const parts = [magnitudes && "magnitudes", !own && `saturated at the ${100 * RULE.full}th percentile`, look.smooth && "blurred by a pixel"].filter(Boolean);
  const text = parts.join(", ");
  return cells + (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");
}
