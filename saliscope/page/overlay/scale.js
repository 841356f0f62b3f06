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

  /** The round tick closest to the middle. */
  get central() {
    return this.ticks
      .filter(({ at }) => at > 0.2 && at < 0.65)
      .sort((a, b) => Math.abs(a.at - 0.5) - Math.abs(b.at - 0.5))[0];
  }

  middle() {
    return this.central ? this.central.text : "";
  }

  place() {
    return this.central ? `position:absolute;left:${100 * this.central.at}%;translate:-50%` : "";
  }

  /** Show the colors of `rendering`; `mapOnly`: the colors of the map without the image. */
  show(map, rendering, { unit, magnitudes, own, mapOnly }) {
    drawBar(this.bar, { ...rendering, mapOnly });
    const beyond = rendering.clipped;
    const sign = beyond && rendering.colors === "signed" ? "≤ " : "";
    const quantity = quantityOf(this.terms, map, magnitudes, "");
    this.ticks = ticksOf(rendering);
    this.label = quantityOf(this.terms, map, magnitudes, unit);
    const last = `${beyond ? "≥ " : ""}${formatValue(rendering.high)}`;
    this.ends.replaceChildren(
      make("span", { text: `${sign}${formatValue(rendering.low)}` }),
      make("span", { class: "hl-quantity", text: quantity || this.middle(), style: quantity ? "" : this.place() }),
      make("span", { text: unit ? `${last} ${unit}` : last }),
    );
    const [low, high] = [rendering.low, rendering.high].map(formatValue);
    this.bar.setAttribute("aria-label", fill(this.terms.color_range, { low, high, unit }));
    this.drawing.textContent = describe(this.terms, map, rendering, magnitudes, own);
    if (this.chart) chart(this.chart, map, rendering, magnitudes, this.terms.histogram);
  }
}
