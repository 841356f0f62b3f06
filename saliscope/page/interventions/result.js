// The classes and the maps before and after a change.
import { Figure } from "./figure.js";
import { unpackMap } from "../drawing/field.js";
import { commonRange, drawBar, view } from "../drawing/paint.js";
import { loadImage } from "../drawing/surface.js";
import { ticksOf } from "../drawing/ticks.js";
import { makeRow, makeTable } from "../shared/elements.js";
import { formatValue, make } from "../wire.js";

function table(terms, rows) {
  const row = ({ texts: [name, ...texts], change }) => makeRow(name, texts, { "data-sign": Math.sign(change) });
  return makeTable(terms.columns, rows.map(row));
}

/** A color bar with its ends. */
function legend(rendering, unit) {
  const canvas = make("canvas", { class: "hl-bar", width: 256, height: 1, "aria-hidden": "true" }),
    ticks = ticksOf(rendering);
  drawBar(canvas, rendering);
  const ends = [ticks[0].text, unit, ticks.at(-1).text].map((text) => make("span", { text }));
  return make("div", {}, canvas, make("div", { class: "hl-ends" }, ...ends));
}

export class Result {
  /**
   * @param {Record<string, any>} terms
   * @param {(cell: number[]) => void} press called with the position that was clicked
   */
  constructor(terms, press) {
    this.terms = terms;
    this.press = press;
    this.effects = null;
    this.unpacked = [];
    this.unit = "";
    this.note = "";
    this.old = make("strong", { text: terms.old });
    this.title = make("p", { class: "hl-change-title" });
    this.classes = make("div", { class: "hl-change-classes" });
    // The figures are kept, so that nothing below moves while another result is drawn.
    this.figures = [terms.before, terms.after].map((text) => new Figure(text, { point: (cell) => this.point(cell) }));
    this.mapTitle = make("p");
    this.scale = make("div", { class: "hl-change-scale" });
    this.read = make("output", { class: "hl-quiet" });
    const figures = this.figures.map(({ root }) => root);
    this.maps = make("div", { class: "hl-change-maps" }, this.mapTitle, ...figures, this.scale, this.read);
    this.pending = make("p", { class: "hl-quiet", text: terms.maps_waiting, hidden: true });
    this.positions = make("div", { class: "hl-change-maps" });
    const left = make("div", { class: "hl-change-left" }, this.classes, this.positions);
    this.root = make("div", { class: "hl-change-result", hidden: true }, this.title, left, this.maps, this.pending);
  }

  /** Show an answer; resolves once it is drawn. A new position keeps the map of all positions. */
  async show(value) {
    const image = await loadImage(value.crop.src);
    this.title.replaceChildren(this.old, `${value.title} ${value.summary}`);
    this.classes.replaceChildren(table(this.terms, value.classes));
    this.root.hidden = false;
    this.maps.hidden = !value.maps;
    this.pending.hidden = Boolean(value.maps);
    if (value.maps) this.showMaps(value, image);
    if (value.effects) this.effects = value.effects;
    else if (!value.cell) this.effects = null;
    this.positions.replaceChildren();
    if (this.effects) this.showPositions(value, image);
  }

  showMaps({ maps, map_title: title, unit, note }, image) {
    const unpacked = maps.map(unpackMap),
      style = { signed: !unpacked[0].by_size };
    const colors = unpacked.some((map) => style.signed && map.signed) ? "signed" : "magma";
    const shared = { ...style, colors, limits: commonRange(unpacked, () => ({ ...style, colors })) };
    Object.assign(this, { unpacked, unit, note });
    this.mapTitle.textContent = title;
    this.read.textContent = note;
    this.scale.replaceChildren(legend(view(unpacked[1], shared), unit));
    this.figures.forEach((figure, k) => figure.show(unpacked[k], image, shared));
  }

  /** Show the values of both maps at a cell; null shows the note. */
  point(cell) {
    for (const figure of this.figures) figure.point(cell);
    const at = ({ values, w }) => formatValue(values[cell[0] * w + cell[1]]);
    this.read.textContent = cell ? `${this.unpacked.map(at).join(" → ")} ${this.unit}` : this.note;
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
    const scale = make("div", { class: "hl-change-scale" }, legend(view(map, style), effects.unit));
    this.positions.replaceChildren(figure.root, scale, read);
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
