// What a map shows and how its drawing differs from it, in words; the same on the page and in saved figures.
import { RULE } from "./constants.js";
import { sigmaOf } from "./paint.js";
import { fill } from "../wire.js";

/** Return quantity and unit of a color bar: "|gradient| in logit per unit of input", or only the unit. */
export function quantityOf(terms, map, magnitudes, unit) {
  const isSize = magnitudes || !map.signed,
    quantity = isSize && map.by_size ? terms.gradient : magnitudes && map.signed ? terms.magnitude : "";
  return quantity && unit ? fill(terms.in_unit, { quantity, unit }) : quantity || unit;
}

function blurred(terms, map, { h, w, colors }) {
  const sigma = colors === "signed" ? sigmaOf(map.values) : RULE.blur,
    count = Number((sigma * Math.max(h, w)).toPrecision(2));
  return fill(terms.blurred, { pixels: count === 1 ? terms.pixel : fill(terms.pixels, { count }) });
}

/**
 * Describe how the drawing differs from the map, and its contours.
 * @param {Record<string, any>} terms
 * @param {import("./field.js").Field} map
 * @param {import("./paint.js").Rendering} rendering
 * @param {boolean} magnitudes
 * @param {?number[]} own limits chosen by the user, or shared
 */
export function describe(terms, map, rendering, magnitudes, own) {
  const cells = rendering.smooth ? "" : fill(terms.cells, map);
  if (!rendering.fine) {
    const isSigned = rendering.colors === "signed" && rendering.values.some((value) => value < 0),
      text = isSigned ? terms.signed_contours : terms.contours;
    return cells + fill(text, { low: 100 * RULE.low_line, high: 100 * RULE.high_line });
  }
  const parts = [
    magnitudes && terms.drawn_magnitudes,
    !own && fill(terms.saturated, { percentile: 100 * RULE.full }),
    rendering.smooth && blurred(terms, map, rendering),
  ].filter(Boolean);
  const text = parts.join(", ");
  return cells + (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");
}
