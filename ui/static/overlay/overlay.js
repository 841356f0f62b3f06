// A map over the network's crop of the picture. Nothing here but a click on a thing in the picture makes a request.
import { field } from "../drawing/field.js";
import { History } from "./history.js";
import { Kept } from "./kept.js";
import { Limits } from "./limits.js";
import { Looks } from "./looks.js";
import { view } from "../drawing/paint.js";
import { Pointer } from "./pointer.js";
import { saves } from "../share/saves.js";
import { Scale } from "./scale.js";
import { Shown } from "./shown.js";
import { Surface, picture } from "../drawing/surface.js";
import { Things } from "../drawing/things.js";
import { Tools } from "./tools.js";
import { Window } from "../panel/window.js";
import { follow, make, painted, save } from "../wire.js";

const NARROW = 480, TIGHT = 600;                         // CSS pixels of the controls' width

class View {
  constructor(element, props, trigger) {
    Object.assign(this, { element, props, trigger });
    this.map = null;
    this.value = null;                                 // the answer that is shown
    this.look = null;                                  // how the map is drawn, see `view` in paint.js
    this.kept = new Kept();
    this.build(element.firstElementChild);
    this.surface = new Surface(this.canvas);
    this.looks = props.address ? new Looks(this) : null;
    new ResizeObserver(() => this.surface.fit() && (this.map ? this.colour() : this.surface.alone())).observe(this.canvas);
  }

  build(root) {
    const { props } = this, mix = () => this.mix(), colour = () => this.colour();
    this.canvas = make("canvas", { width: 512, height: 512, tabindex: 0, role: "img", "aria-label": props.empty });
    this.field = make("div", { class: "hl-field", hidden: true });
    this.heading = make("h2", { class: "hl-heading", hidden: true });
    this.facts = make("dl", { class: "hl-facts" });
    this.empty = make("p", { class: "hl-empty", text: props.empty });
    this.chip = make("p", { class: "hl-recalled", hidden: true, text: "from before" });
    this.frame = make("div", { class: "hl-frame" }, this.canvas, this.field);
    this.things = new Things(this.frame, props.things || {});
    this.shown = new Shown(this.frame, () => { this.tools.follow(); this.bars(); this.mix(); });
    this.pointer = new Pointer(this.element, this.canvas, this.things,
      { take: (x, y) => this.take(x, y), peek: (on) => this.shown.hold(on ? "photograph" : null) });
    this.frame.append(this.pointer.box, this.chip, this.empty);
    this.limits = new Limits(colour);
    this.history = new History((step) => this.scrub(step), (step) => this.sketch(step));
    this.scale = new Scale(Boolean(props.chart));
    const choose = () => { if (this.tools.tint.value === "signed") this.tools.signed.input.checked = true; this.limits.next(); this.colour(); };
    this.tools = new Tools(this, { mix, colour, choose, sign: () => { this.limits.next(); this.colour(); } });
    const menu = saves(this);
    this.tools.buttons.push(menu.button);
    this.tools.saves.append(menu.root);
    this.window = props.window ? new Window(props.window) : null;
    const fold = ({ clientWidth: wide }) => { root.classList.toggle("hl-narrow", wide < NARROW); root.classList.toggle("hl-tight", wide < TIGHT); };
    new ResizeObserver(() => fold(this.tools.root)).observe(this.tools.root);
    root.replaceChildren(this.heading, this.frame, this.pointer.read, this.scale.root, this.tools.root, this.facts);
    this.tools.enable(false);
  }

  /** Draw what the component holds now. */
  async update() {
    const since = performance.now(), { value } = this.props, { kept } = this;
    const partial = value && value.state === "partial";
    if (partial) kept.partial(value);
    else if (value) kept.put(value);
    if (partial && this.better(value)) this.history.run(kept.entry(value.key).partials, value);
    else await this.show(value, since);
  }

  /** Whether the map on the screen answers the same question as a partial one, and is further. */
  better({ key, share }) {
    const { value } = this;
    return Boolean(this.recalled && key && value && value.key === key && (value.share ?? 1) > share);
  }

  /** A question that was asked before: its map, until the answer comes. */
  recall(key) {
    const value = this.kept.find(key);
    if (value && !(this.value && this.value.key === key)) this.show(value, performance.now(), true);
  }

  async show(value, since, recalled = false) {
    const same = this.value && value && this.value.about === value.about;
    this.value = value;
    this.things.show(value && value.things);
    if (!value || !(value.map || value.crop)) return this.clear(value, since);
    const image = value.crop ? await picture(value.crop.src) : this.surface.image;
    if (this.value !== value) return;                  // a newer answer came while this picture was decoded
    this.surface.image = image;
    this.recalled = recalled;
    this.chip.hidden = !recalled;
    if (!same) {
      this.limits.next();
      this.pointer.over(null, {});
      this.tools.signed.input.checked = !(value.map && value.map.by_size) || this.tools.tint.value === "signed";
    }
    this.looks?.next(value);
    const { ratio } = this.surface;
    this.frame.style.cssText = `aspect-ratio:${1 / ratio};--hl-upright:${Math.min(1, 1 / ratio)}`;
    this.empty.hidden = true;
    this.frame.dataset.state = recalled ? "recalled" : value.map ? value.state || "done" : "alone";
    this.canvas.setAttribute("aria-label", value.words.alt);
    this.tools.enable(Boolean(value.map));
    this.past(value);
    if (value.map) this.lay(field(value.map));
    else this.alone();
    this.describe(value);
    this.window?.show(value.crop);
    if (!recalled) painted(this.element, value.id, since);
  }

  /** The partial maps of a long method. */
  past(value) {
    const partials = value.key ? this.kept.entry(value.key).partials : [];
    if (value.state === "partial") this.history.run(partials, value);
    else this.history.end(value.map ? partials : [], value);
  }

  /** Draw a map over the picture; limits, read-out and switches stay. */
  lay(map) {
    this.map = map;
    this.whole = { field: map };
    this.tools.signed.root.hidden = !map.signed;
    this.surface.fit();
    this.colour();
    this.pointer.over(map, this.value.words);
  }

  /** A partial map in the colours of the final one, drawn with few pixels and kept. */
  sketch(step) {
    const { tools: { signed, smooth }, final } = this;
    const stamp = [this.value.id, final.colours, signed.input.checked, smooth.input.checked, final.low, final.high, this.canvas.width].join();
    if (step.stamp === stamp) return;
    const look = this.viewed(step.field, [final.low, final.high], final.colours);
    Object.assign(step, { stamp, look, layers: this.surface.sketch(look) });
  }

  /** Show a partial map, or with null the final one. */
  scrub(step) {
    const at = step || this.whole;
    this.sketch(at);
    this.map = at.field;
    this.look = at.look;
    this.surface.use(at.look, at.layers);
    this.pointer.over(at.field, this.value.words);
    this.mix();
  }

  /** The photograph without a map: nothing was found in it that could be explained. */
  alone() {
    this.map = null;
    this.tools.signed.root.hidden = true;
    this.surface.fit();
    this.surface.alone();
    this.scale.clear();
    this.pointer.over(null, {});
  }

  /** Ask for the thing at this point of the picture. */
  take(x, y) {
    const target = this.things.take(x, y);
    if (target) this.trigger("select", { target });
  }

  /** A channel's heading, figures, and the receptive field of its strongest cell. */
  describe(value) {
    this.heading.hidden = !value.words.title;
    this.heading.textContent = value.words.title || "";
    this.facts.replaceChildren(...(value.words.facts || []).flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]));
    const box = value.box;
    this.field.hidden = !box;
    if (box) this.field.style.cssText = `left:${100 * box[0]}%;top:${100 * box[1]}%;width:${100 * (box[2] - box[0])}%;height:${100 * (box[3] - box[1])}%`;
  }

  clear(value, since) {
    this.map = null;
    this.recalled = false;
    this.empty.hidden = false;
    this.empty.textContent = (value && value.words && value.words.empty) || this.props.empty;
    this.surface.clear();
    this.canvas.setAttribute("aria-label", this.empty.textContent);
    this.scale.clear();
    this.facts.replaceChildren();
    this.heading.hidden = this.field.hidden = this.chip.hidden = true;
    this.history.clear();
    this.tools.enable(false);
    this.window?.show(null);
    this.pointer.over(null, {});
    painted(this.element, value && value.id, since);
  }

  viewed(map, limits, colours = this.tools.tint.value) {
    const { signed, smooth } = this.tools;
    return view(map, { colours, limits, signed: signed.input.checked, smooth: smooth.input.checked });
  }

  /** Draw the map once; opacity and divider then only blend pictures. */
  colour() {
    if (!this.map) return;
    if (this.history.partial) {
      this.final = this.viewed(this.whole.field, this.range(this.whole.field));
      this.scrub(this.history.step);
    } else {
      this.look = this.final = this.viewed(this.map, this.range(this.map));
      this.surface.paint(this.look);
    }
    this.limits.show(this.final, this.value.words.unit);
    this.bars();
    this.mix();
  }

  range(map) {
    return this.limits.of(map, this.tools.tint.value, this.tools.signed.input.checked);
  }

  /** The colour bar, in the colours of what is shown. */
  bars() {
    if (!this.map) return;
    const magnitudes = this.map.signed && !this.tools.signed.input.checked;
    this.scale.show(this.map, this.final, { unit: this.value.words.unit, magnitudes, own: this.limits.range, alone: this.shown.mode === "map" });
  }

  mix() {
    if (!this.map) return;
    this.surface.mix(this.tools.opacity.value / 100, this.shown.state);
    this.tools.follow();
    this.looks?.changed();
  }

  async png() {
    this.history.back();
    save(await this.surface.png(this.tools.opacity.value / 100, this.shown.state), `${this.value.name}.png`);
  }
}

export function mount(element, props, trigger, watch) {
  const view = new View(element, props, trigger);
  document.addEventListener("hl-recall", (event) => { if (event.detail.id === element.closest("[id^='hl-']")?.id) view.recall(event.detail.key); });
  document.addEventListener("hl-photograph", ({ detail }) => {
    if (detail.id === element.closest("[id^='hl-']")?.id) Object.assign(detail, { key: view.value?.map ? view.value.key : null, image: view.surface.image });
  });
  follow(props, watch, ["value"], () => view.update());
}
