// The color bar below a map: its ends with units, how the drawing differs from the map, and a histogram on the same
// axis.
import { chart } from "../drawing/histogram.js";
import { RULE } from "../drawing/constants.js";
import { bar } from "../drawing/paint.js";
import { fill, make, formatValue } from "../wire.js";

export class Scale {
  /** `histogram`: whether to draw one. */
  constructor(terms, histogram) {
    this.terms = terms;
    this.bar = make("canvas", { class: "hl-bar", width: 256, height: 1, role: "img" });
    this.ends = make("div", { class: "hl-ends" });
    this.drawing = make("p", {
      class: "hl-quiet hl-drawing",
      title: terms.drawing,
    });
    this.chart = histogram ? make("div", { class: "hl-chart", role: "img" }) : null;
    this.root = make(
      "div",
      { class: "hl-scale" },
      ...(histogram ? [this.chart] : []),
      this.bar,
      this.ends,
      this.drawing,
    );
  }

  clear() {
    this.ends.replaceChildren();
    this.bar.getContext("2d").clearRect(0, 0, this.bar.width, this.bar.height);
    this.drawing.textContent = "";
    this.chart?.replaceChildren();
  }

  /** Show the colors of `rendering`; `mapOnly`: the colors of the map without the image. */
  show(map, rendering, { unit, magnitudes, own, mapOnly }) {
    const context = this.bar.getContext("2d"),
      pixels = context.createImageData(256, 1);
    bar(pixels.data, { ...rendering, mapOnly });
    context.putImageData(pixels, 0, 0);
    const beyond = rendering.clipped;
    const marks = [
      `${beyond && rendering.colors === "signed" ? "≤ " : ""}${formatValue(rendering.low)}`,
      formatValue((rendering.low + rendering.high) / 2),
      `${beyond ? "≥ " : ""}${formatValue(rendering.high)}${unit ? ` ${unit}` : ""}`,
    ];
    this.ends.replaceChildren(...marks.map((text) => make("span", { text })));
    const [low, high] = [rendering.low, rendering.high].map(formatValue);
    this.bar.setAttribute("aria-label", fill(this.terms.colors, { low, high, unit }));
    this.drawing.textContent = describe(this.terms, map, rendering, magnitudes, own);
    if (this.chart) chart(this.chart, map, rendering, magnitudes, this.terms.histogram);
  }
}

/** Describe how the drawing differs from the map, and its contours. */
function describe(terms, map, rendering, magnitudes, own) {
  const cells = rendering.smooth ? "" : fill(terms.cells, map);
  if (!rendering.fine) return cells + fill(terms.contours, { low: 100 * RULE.low_line, high: 100 * RULE.high_line });
  const parts = [
    magnitudes && terms.magnitudes,
    !own && fill(terms.saturated, { percentile: 100 * RULE.full }),
    rendering.smooth && terms.blurred,
  ].filter(Boolean);
  const text = parts.join(", ");
  return cells + (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");
}
