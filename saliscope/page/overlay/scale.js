// The color bar below a map: its ends with units, how the drawing differs from the map, and a histogram on the same
// axis.
import { chart } from "../drawing/histogram.js";
import { describe, quantityOf } from "../drawing/describe.js";
import { drawBar } from "../drawing/paint.js";
import { ticksOf } from "../drawing/ticks.js";
import { explain } from "../text/terms.js";
import { fill, make, formatValue } from "../wire.js";

export class Scale {
  /** `histogram`: whether to draw one. */
  constructor(terms, histogram) {
    this.terms = terms;
    this.bar = make("canvas", { class: "hl-bar", width: 256, height: 1, role: "img" });
    this.ends = make("div", { class: "hl-ends" });
    explain(this.ends);
    this.drawing = make("p", { class: "hl-quiet hl-drawing", title: terms.drawing });
    this.chart = histogram ? make("div", { class: "hl-chart", role: "img" }) : null;
    const parts = [this.chart, this.bar, this.ends, this.drawing].filter(Boolean);
    this.root = make("div", { class: "hl-scale" }, ...parts);
  }

  clear() {
    this.ends.replaceChildren();
    this.bar.getContext("2d").clearRect(0, 0, this.bar.width, this.bar.height);
    this.drawing.textContent = "";
    this.chart?.replaceChildren();
  }

  /** The text in the middle, and its place: that of the round tick closest to it, if there is no quantity. */
  middle(quantity) {
    const distance = ({ at }) => Math.abs(at - 0.5),
      [tick] = this.ticks.filter(({ at }) => at > 0.2 && at < 0.65).sort((a, b) => distance(a) - distance(b));
    if (quantity || !tick) return { text: quantity };
    return { text: tick.text, style: `position:absolute;left:${100 * tick.at}%;translate:-50%` };
  }

  /** Show the colors of `rendering`; `mapOnly`: the colors of the map without the image. */
  show(map, rendering, { unit, magnitudes, own, mapOnly }) {
    drawBar(this.bar, { ...rendering, mapOnly });
    const quantity = quantityOf(this.terms, map, magnitudes, "");
    this.ticks = ticksOf(rendering);
    this.label = quantityOf(this.terms, map, magnitudes, unit);
    const [first, last] = [this.ticks[0].text, this.ticks.at(-1).text];
    this.ends.replaceChildren(
      make("span", { text: first }),
      make("span", { class: "hl-quantity", ...this.middle(quantity) }),
      make("span", { text: unit ? `${last} ${unit}` : last }),
    );
    const [low, high] = [rendering.low, rendering.high].map(formatValue);
    this.bar.setAttribute("aria-label", fill(this.terms.color_range, { low, high, unit }));
    this.drawing.textContent = describe(this.terms, map, rendering, magnitudes, own);
    if (this.chart) chart(this.chart, map, rendering, magnitudes, this.terms.histogram);
  }
}
