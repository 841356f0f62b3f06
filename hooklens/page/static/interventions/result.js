// The classes and the maps before and after a change.
import { Figure } from "./figure.js";
import { unpackMap } from "../drawing/field.js";
import { bar, view } from "../drawing/paint.js";
import { loadImage } from "../drawing/surface.js";
import { ticksOf } from "../drawing/ticks.js";
import { formatValue, make } from "../wire.js";

/** Return one color range for several maps. */
function commonRange(maps, style) {
  const ranges = maps.map((map) => view(map, style));
  return [Math.min(...ranges.map(({ low }) => low)), Math.max(...ranges.map(({ high }) => high))];
}

function table(terms, rows) {
  const head = make("tr", {}, ...terms.columns.map((text) => make("th", { scope: "col", text })));
  const row = ({ texts: [name, ...texts], change }) =>
    make(
      "tr",
      { "data-sign": Math.sign(change) },
      make("th", { scope: "row", text: name }),
      ...texts.map((text) => make("td", { text })),
    );
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows.map(row)));
}

/** A color bar with its ends. */
function legend(rendering, unit) {
  const canvas = make("canvas", { class: "hl-bar", width: 256, height: 1, "aria-hidden": "true" }),
    context = canvas.getContext("2d"),
    pixels = context.createImageData(256, 1),
    ticks = ticksOf(rendering);
  bar(pixels.data, rendering);
  context.putImageData(pixels, 0, 0);
  const ends = [ticks[0].text, unit, ticks.at(-1).text].map((text) => make("span", { text }));
  return make("div", { class: "hl-change-scale" }, canvas, make("div", { class: "hl-ends" }, ...ends));
}

export class Result {
  /**
   * @param {object} terms
   * @param {(cell: number[]) => void} press called with the position that was clicked
   */
  constructor(terms, press) {
    Object.assign(this, { terms, press, effects: null });
    this.old = make("strong", { text: terms.old });
    this.title = make("p", { class: "hl-change-title" });
    this.classes = make("div", { class: "hl-change-classes" });
    this.maps = make("div", { class: "hl-change-maps" });
    this.positions = make("div", { class: "hl-change-maps" });
    const left = make("div", { class: "hl-change-left" }, this.classes, this.positions);
    this.root = make("div", { class: "hl-change-result", hidden: true }, this.title, left, this.maps);
  }

  /** Show an answer; resolves once it is drawn. A new position keeps the map of all positions. */
  async show(value) {
    const image = await loadImage(value.crop.src);
    this.title.replaceChildren(this.old, `${value.title} ${value.summary}`);
    this.classes.replaceChildren(table(this.terms, value.classes));
    this.root.hidden = false;
    if (value.maps) this.showMaps(value, image);
    else this.maps.replaceChildren(make("p", { class: "hl-quiet", text: this.terms.maps_waiting }));
    if (value.effects) this.effects = value.effects;
    else if (!value.cell) this.effects = null;
    this.positions.replaceChildren();
    if (this.effects) this.showPositions(value, image);
  }

  showMaps({ maps, map_title: title, unit, note }, image) {
    const { terms } = this,
      unpacked = maps.map(unpackMap),
      style = { signed: !unpacked[0].by_size },
      read = make("output", { class: "hl-quiet" });
    const point = (cell) => {
      for (const figure of figures) figure.point(cell);
      const [before, after] = cell ? unpacked.map(({ values, w }) => formatValue(values[cell[0] * w + cell[1]])) : [];
      read.textContent = cell ? `${before} → ${after} ${unit}` : note;
    };
    const figures = [terms.before, terms.after].map((caption) => new Figure(caption, { point }));
    const colors = unpacked.some((map) => style.signed && map.signed) ? "signed" : "magma";
    const shared = { ...style, colors, limits: commonRange(unpacked, { ...style, colors }) };
    this.maps.replaceChildren(
      make("p", { text: title }),
      ...figures.map(({ root }) => root),
      legend(view(unpacked[1], shared), unit),
      read,
    );
    read.textContent = note;
    figures.forEach((figure, k) => figure.show(unpacked[k], image, shared));
  }

  showPositions({ cell }, image) {
    const { terms, effects } = this,
      map = unpackMap(effects.map),
      read = make("output", { class: "hl-quiet", text: terms.clicked }),
      style = { colors: "signed", smooth: false };
    const figure = new Figure(effects.title, {
      point: (at) => {
        figure.point(at || cell);
        read.textContent = at ? `${formatValue(map.values[at[0] * map.w + at[1]])} ${effects.unit}` : terms.clicked;
      },
      press: this.press,
    });
    this.positions.replaceChildren(figure.root, legend(view(map, style), effects.unit), read);
    figure.show(map, image, style);
    figure.point(cell);
  }

  /** Mark the result as that of former settings. */
  mark(isOld) {
    this.root.dataset.old = String(isOld);
    this.old.hidden = !isOld;
  }

  clear() {
    this.root.hidden = true;
    this.effects = null;
  }
}
