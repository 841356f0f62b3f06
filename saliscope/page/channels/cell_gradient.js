// The input gradient of one cell of the open channel, drawn over the image. Clicking the large map, or pressing Enter,
// requests it for the cell there.
import { sortHere } from "./channels.js";
import { traceCell } from "../arithmetic/arithmetic.js";
import { unpackMap } from "../drawing/field.js";
import { view } from "../drawing/paint.js";
import { Surface, loadImage } from "../drawing/surface.js";
import { request } from "../parts.js";
import { change, state } from "../store.js";
import { placeOf } from "../shared/elements.js";
import { make, makeButton } from "../wire.js";

/**
 * Explain a cell of the open channel: where its input gradient is, and how its value is computed.
 * @param {?{row: number, column: number}} at
 */
export function explainCell(at) {
  const { number } = state.channels;
  if (!at || number === null) return;
  const cell = [at.row, at.column];
  change("channels", { here: cell });
  request("hl-channel-why", "select", { channel: number, cell });
  traceCell(number, cell);
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const root = element.firstElementChild,
    { terms } = props;
  let value = null;
  const canvas = make("canvas", { width: 224, height: 224, role: "img" }),
    line = make("p", { class: "hl-quiet" });
  const mark = make("div", { class: "hl-cell", hidden: true });
  const area = make("div", { class: "hl-channels-why-area" }, canvas, mark); // the part of the image, in a square
  const frame = make("div", { class: "hl-channels-why" }, area);
  const surface = new Surface(canvas, () => value?.crop && surface.image && paint());
  const sort = makeButton(terms.here, () => sortHere(value.cell), { title: terms.here_title });
  root.replaceChildren(make("h2", { class: "hl-title", text: terms.why }), frame, line, sort);
  root.toggleAttribute("hidden", true);

  const paint = () => {
    surface.fit();
    if (!value.map) return surface.drawPhoto();
    surface.paint(view(unpackMap(value.map), { signed: false }));
    surface.mix(1);
  };
  return async (given) => {
    if (!given?.crop) {
      value = given;
      root.toggleAttribute("hidden", true);
      return;
    }
    const image = await loadImage(given.crop.src);
    if (props.value !== given) return false;
    [value, surface.image] = [given, image];
    root.toggleAttribute("hidden", false);
    area.style.cssText = `aspect-ratio:${1 / surface.ratio};width:${100 / Math.max(1, surface.ratio)}%`;
    paint();
    canvas.setAttribute("aria-label", given.line);
    line.textContent = given.line;
    mark.hidden = false;
    mark.style.cssText = placeOf(given.box);
  };
}
