// One map over the image with its caption; several share a color range.
import { cellAt, followCells, positionIn } from "../drawing/cells.js";
import { view } from "../drawing/paint.js";
import { Surface } from "../drawing/surface.js";
import { placeOfCell } from "../shared/elements.js";
import { make } from "../wire.js";

export class Figure {
  /**
   * @param {string} caption
   * @param {{point: (cell: ?number[]) => void, press?: (cell: number[]) => void}} actions called with the cell (row,
   *   column) under the pointer, or null, and with the cell that was clicked
   */
  constructor(caption, { point, press }) {
    this.press = press;
    this.report = point;
    this.map = null;
    this.style = {};
    this.cell = null;
    this.canvas = make("canvas", { width: 256, height: 256, role: "img", tabindex: 0, "aria-label": caption });
    this.mark = make("div", { class: "hl-cell", hidden: true });
    this.caption = make("figcaption", { text: caption });
    this.root = make("figure", {}, this.caption, make("div", { class: "hl-change-frame" }, this.canvas, this.mark));
    this.surface = new Surface(this.canvas, () => this.map && this.paint());
    const { canvas } = this;
    followCells(canvas, {
      map: () => this.map,
      cell: () => this.cell,
      over: (x, y) => this.report(cellAt(x, y, this.map)),
      mark: (row, column) => this.report([row, column]),
      leave: () => this.report(null),
    });
    canvas.addEventListener("click", (event) => this.press?.(cellAt(...positionIn(canvas, event), this.map)));
    canvas.addEventListener("keydown", (event) => event.key === "Enter" && this.cell && this.press?.(this.cell));
  }

  /** Draw a map with this style, see `view` in paint.js. */
  show(map, image, style) {
    Object.assign(this, { map, style });
    this.surface.image = image;
    this.surface.fit();
    this.paint();
  }

  paint() {
    this.surface.paint(view(this.map, this.style));
    this.surface.mix(1);
  }

  /** Mark a cell. */
  point(cell) {
    this.cell = cell;
    this.mark.hidden = !cell;
    if (cell) this.mark.style.cssText = placeOfCell(cell[0], cell[1], this.map);
  }
}
