// A map over the crop that the network receives. Only a click on a detected object makes a request.
import { unpackMap } from "../drawing/field.js";
import { explainCell } from "../channels/cell_gradient.js";
import { completeCrop } from "../maps/crops.js";
import { History } from "./history.js";
import { MapCache } from "./map_cache.js";
import { Limits } from "./limits.js";
import { AddressBinding } from "./address.js";
import { view } from "../drawing/paint.js";
import { Pointer } from "./pointer.js";
import { Preview } from "./preview.js";
import { createSaveMenu } from "../share/save_menu.js";
import { Scale } from "./scale.js";
import { DisplayMode } from "./display_mode.js";
import { Surface, loadImage } from "../drawing/surface.js";
import { DetectedObjects } from "../drawing/objects.js";
import { Tools } from "./tools.js";
import { markCurrent } from "../shared/outdated.js";
import { change, state, subscribe, update } from "../store.js";
import { Component, markDrawn } from "../parts.js";
import { makeFacts, placeOf, showText } from "../shared/elements.js";
import { make, downloadFile } from "../wire.js";

const views = new Map(); // by the id of their parts

/**
 * Add elements over a map, for other parts.
 * @param {string} id of the part with the map
 * @param {...HTMLElement} elements
 * @returns {?{image: ?HTMLImageElement, key: ?string, width: number, height: number, bounds: DOMRect}} what it shows
 */
export const cover = (id, ...elements) => views.get(id)?.cover(...elements);

class View extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.id = element.id;
    this.map = null;
    this.value = null; // the answer that is shown
    this.rendering = null; // how the map is drawn, see `view` in paint.js
    this.cache = new MapCache();
    this.build();
    this.surface = new Surface(this.canvas, () => (this.map ? this.redraw() : this.surface.drawPhoto()));
    this.binding = props.address ? new AddressBinding(this) : null;
  }

  build() {
    const { props, terms, root } = this,
      mix = () => this.mix(),
      redraw = () => this.redraw();
    this.canvas = make("canvas", { width: 512, height: 512, tabindex: 0, role: "img", "aria-label": props.empty });
    this.field = make("div", { class: "hl-field", hidden: true });
    this.heading = make("h2", { class: "hl-heading", hidden: true });
    this.facts = make("dl", { class: "hl-facts" });
    this.empty = make("p", { class: "hl-empty", text: props.empty });
    this.chip = make("p", { class: "hl-recalled", hidden: true, text: terms.cached });
    this.frame = make("div", { class: "hl-frame" }, this.canvas, this.field);
    this.objects = new DetectedObjects(this.frame, props.things || {});
    this.display = new DisplayMode(terms, this.frame, () => {
      this.tools.follow();
      this.drawBar();
      this.mix();
    });
    this.pointer = new Pointer(terms, this.canvas, this.objects, {
      report: (cell) => change("cells", { [this.id]: cell }),
      take: (x, y) => this.take(x, y),
      peek: (on) => this.display.hold(on ? "photograph" : null),
    });
    this.preview = new Preview(this);
    this.frame.append(this.pointer.box, this.chip, this.preview.chip, this.empty);
    this.limits = new Limits(terms, redraw);
    this.history = new History(
      terms,
      (step) => this.scrub(step),
      (step) => this.sketchPartial(step),
    );
    this.scale = new Scale(terms, Boolean(props.chart));
    const sign = () => {
      this.limits.next();
      this.redraw();
    };
    const choose = () => {
      if (this.tools.tint.value === "signed") this.tools.signed.input.checked = true;
      sign();
    };
    this.menu = createSaveMenu(this);
    this.tools = new Tools(terms, this, { mix, redraw, choose, sign });
    this.scale.root.append(this.pointer.read);
    const below = make("div", { class: "hl-below" }, this.limits.note, this.history.root);
    root.replaceChildren(this.heading, this.tools.root, this.frame, this.scale.root, below, this.facts);
    this.tools.enable(false);
  }

  receive(value) {
    const since = performance.now(),
      { cache } = this;
    if (value) value.crop = completeCrop(value.crop);
    const partial = value && value.state === "partial";
    if (partial) cache.partial(value);
    else if (value) cache.put(value);
    if (partial && this.isBetter(value)) this.history.set(cache.entry(value.key).partials, value, true);
    else this.show(value, since);
    return false; // `show` marks it
  }

  /** Check whether the cached map answers the same request as a partial one, and is more complete. */
  isBetter({ key, share }) {
    const { value } = this;
    return Boolean(this.recalled && key && value && value.key === key && (value.share ?? 1) > share);
  }

  /** Show the cached map of a request until its answer arrives. */
  recall(key) {
    const value = this.cache.find(key);
    if (value && !(this.value && this.value.key === key)) this.show(value, performance.now(), true);
  }

  async show(value, since, recalled = false) {
    const same = this.value && value && this.value.about === value.about,
      { asked } = state;
    this.value = value;
    this.objects.show(value && value.things);
    if (!value || !(value.map || value.crop)) return this.clear(value, since);
    const { image: shown } = this.surface,
      isShown = !value.crop || shown?.src === value.crop.src; // decoding it again takes longer than drawing
    const image = isShown ? shown : await loadImage(value.crop.src);
    if (this.value !== value) return; // a newer answer arrived while this image was decoded
    this.surface.image = image;
    this.recalled = recalled;
    this.chip.hidden = !recalled;
    if (!same) {
      this.limits.next();
      this.pointer.over(null, {});
      this.tools.signed.input.checked = !(value.map && value.map.by_size) || this.tools.tint.value === "signed";
    }
    this.binding?.next(value);
    const { ratio } = this.surface;
    this.frame.style.cssText = `aspect-ratio:${1 / ratio};--hl-upright:${Math.min(1, 1 / ratio)}`;
    this.empty.hidden = true;
    this.frame.dataset.state = recalled ? "recalled" : value.map ? value.state || "done" : "alone";
    this.canvas.setAttribute("aria-label", value.words.alt);
    this.tools.enable(Boolean(value.map));
    const isLive = value.state === "partial",
      partials = value.key && (isLive || value.map) ? this.cache.entry(value.key).partials : [];
    this.history.set(partials, value, isLive);
    if (value.map) this.setMap(unpackMap(value.map));
    else this.drawImage();
    showText(this.heading, value.words.title || "");
    this.facts.replaceChildren(...makeFacts(value.words.facts || []));
    if (this.props.address) update({ crop: value.crop }); // framed on the image in the left column
    if (!recalled) markDrawn(this.element, value.id, since);
    else if (asked === state.asked) markCurrent(this.id);
  }

  /** Draw a map over the image; limits, read-out and checkboxes stay. */
  setMap(map) {
    this.map = map;
    this.complete = { field: map };
    this.tools.signed.root.hidden = !map.signed;
    this.surface.fit();
    this.redraw();
    this.pointer.over(map, this.value.words);
  }

  /**
   * Draw a map at low resolution, and keep the drawing.
   * @param {any} step a map as `field`, which gets its drawing
   * @param {?[number, number]} limits
   * @param {string} [colors]
   */
  sketch(step, limits, colors = this.tools.tint.value) {
    const { signed, smooth } = this.tools,
      stamp = [this.value.id, colors, limits, signed.input.checked, smooth.input.checked, this.canvas.width].join();
    if (step.stamp !== stamp) {
      const rendering = this.render(step.field, limits, colors);
      Object.assign(step, { stamp, rendering, layers: this.surface.sketch(rendering) });
    }
    return step;
  }

  /** Draw a partial map with the colors of the final one. */
  sketchPartial(step) {
    const { low, high, colors } = this.final;
    return this.sketch(step, [low, high], colors);
  }

  /** Show a partial map, or the final one for null. */
  scrub(step) {
    const at = this.sketchPartial(step || this.complete);
    this.map = at.field;
    this.rendering = at.rendering;
    this.surface.use(at.rendering, at.layers);
    this.pointer.over(at.field, this.value.words);
    this.mix();
  }

  /** Show the image without a map: nothing was found that could be explained. */
  drawImage() {
    this.forgetMap();
    this.tools.signed.root.hidden = true;
    this.surface.fit();
    this.surface.drawPhoto();
  }

  forgetMap() {
    this.preview.clear();
    this.map = null;
    this.scale.clear();
    this.pointer.over(null, {});
  }

  /** Request an explanation of the object at this position, or of the cell there. */
  take(x, y) {
    const target = this.objects.take(x, y);
    if (target) this.trigger("change", { target });
    else if (this.props.explains_cells) explainCell(state.cells[this.id]);
  }

  cover(...elements) {
    if (elements[0].parentElement !== this.frame) this.frame.append(...elements);
    const { width, height } = this.canvas;
    const key = this.value?.map ? this.value.key : null;
    return { image: this.surface.image, key, width, height, bounds: this.frame.getBoundingClientRect() };
  }

  /** Draw the box that another part has set for this map. */
  drawField() {
    const box = state.fields[this.id];
    this.field.hidden = !box;
    if (box) this.field.style.cssText = placeOf(box);
  }

  clear(value, since) {
    this.forgetMap();
    this.recalled = false;
    this.empty.hidden = false;
    this.empty.textContent = (value && value.words && value.words.empty) || this.props.empty;
    this.surface.clear();
    this.canvas.setAttribute("aria-label", this.empty.textContent);
    this.facts.replaceChildren();
    this.heading.hidden = this.chip.hidden = true;
    this.history.set([], null);
    this.tools.enable(false);
    if (this.props.address) update({ crop: null });
    markDrawn(this.element, value && value.id, since);
  }

  render(map, limits, colors = this.tools.tint.value) {
    const { signed, smooth } = this.tools;
    return view(map, { colors, limits, signed: signed.input.checked, smooth: smooth.input.checked });
  }

  /** Draw the map once; opacity and divider only blend layers afterwards. */
  redraw() {
    this.preview.clear();
    if (!this.map) return;
    if (this.history.partial) {
      this.final = this.render(this.complete.field, this.range(this.complete.field));
      this.scrub(this.history.step);
    } else {
      this.rendering = this.final = this.render(this.map, this.range(this.map));
      this.surface.paint(this.rendering);
    }
    this.limits.show(this.final, this.value.words.unit);
    this.drawBar();
    this.mix();
  }

  range(map) {
    return this.limits.of(map, this.tools.tint.value, this.tools.signed.input.checked, this.value.words.unit);
  }

  /** Draw the color bar with the current colors. */
  drawBar() {
    if (!this.map) return;
    const magnitudes = this.map.signed && !this.tools.signed.input.checked;
    this.scale.show(this.map, this.final, {
      unit: this.value.words.unit,
      magnitudes,
      own: this.limits.applied(),
      mapOnly: this.display.mode === "map",
    });
  }

  mix() {
    if (!this.map) return;
    this.surface.mix(this.tools.opacity.valueAsNumber / 100, this.display.state);
    this.tools.follow();
    this.binding?.changed();
  }

  async png() {
    if (this.preview.active) this.redraw();
    this.history.back();
    downloadFile(
      await this.surface.png(this.tools.opacity.valueAsNumber / 100, this.display.state),
      `${this.value.name}.png`,
    );
  }
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const view = new View(element, props, trigger);
  if (props.address) subscribe(["question"], () => view.recall(state.question.key));
  if (props.address) subscribe(["preview"], () => view.preview.follow(state.preview));
  subscribe(["fields"], () => view.drawField());
  views.set(view.id, view);
  return (value) => view.receive(value);
}
