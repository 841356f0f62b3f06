// The preview of another layer's map on the large image, while the network diagram is pointed at or plays its maps.
import { fill, formatValue, make } from "../wire.js";

export class Preview {
  /** @param {Record<string, any>} view the overlay, see overlay.js */
  constructor(view) {
    this.view = view;
    this.active = false;
    this.chip = make("p", { class: "hl-recalled hl-previewed", hidden: true });
  }

  /**
   * Show a preview; null returns to the map of the answer.
   * @param {?import("../store.js").Preview} value
   */
  follow(value) {
    const { view } = this;
    if (!view.map) return;
    if (!value) {
      if (this.active) view.redraw();
      return;
    }
    this.active = true;
    const { surface, tools } = view,
      to = view.sketch(value.step, null),
      [low, high] = [to.rendering.low, to.rendering.high].map(formatValue);
    this.label(`${value.text}. ${fill(view.props.terms.color_range, { low, high, unit: value.unit })}`);
    if (value.before && value.share < 1) surface.fade(view.sketch(value.before, null).layers, to, value.share);
    else surface.use(to.rendering, to.layers);
    view.scale.show(value.step.field, to.rendering, { unit: value.unit, mapOnly: view.display.mode === "map" });
    surface.mix(tools.opacity.value / 100, view.display.state);
  }

  /** State that the image shows a preview. */
  label(text) {
    const { view, chip } = this;
    chip.textContent = text;
    chip.hidden = false;
    view.chip.hidden = true;
    view.frame.dataset.preview = "";
    view.canvas.setAttribute("aria-label", text);
    view.pointer.over(null, {});
  }

  /** Forget the preview, because the map of the answer is drawn again. */
  clear() {
    if (!this.active) return;
    const { view } = this;
    this.active = false;
    this.chip.hidden = true;
    view.chip.hidden = !view.recalled;
    delete view.frame.dataset.preview;
    view.canvas.setAttribute("aria-label", view.value.words.alt);
    view.pointer.over(view.map, view.value.words);
  }
}
