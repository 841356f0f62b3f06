// One map over the image with its caption; several share a color range.
import { STEPS, stay } from "../drawing/cells.js";
import { view } from "../drawing/paint.js";
import { Surface } from "../drawing/surface.js";
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
    this.surface = new Surface(this.canvas);
    new ResizeObserver(() => {
      if (this.map && this.surface.fit()) this.paint();
    }).observe(this.canvas);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.report(this.cellAt(event)));
    canvas.addEventListener("pointerleave", () => this.report(null));
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && this.report(this.cell || [0, 0]));
    canvas.addEventListener("blur", () => this.report(null));
    canvas.addEventListener("click", (event) => this.press?.(this.cellAt(event)));
    canvas.addEventListener("keydown", (event) => {
      const step = STEPS[event.key],
        [row, column] = this.cell || [0, 0];
      if (event.key === "Enter" && this.cell) this.press?.(this.cell);
      if (!step || !this.map) return;
      event.preventDefault();
      this.report([stay(row + step[0], this.map.h), stay(column + step[1], this.map.w)]);
    });
  }

  cellAt(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect(),
      { h, w } = this.map;
    return [
      stay(Math.floor(((event.clientY - top) / height) * h), h),
      stay(Math.floor(((event.clientX - left) / width) * w), w),
    ];
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
    this.cell = cell || this.cell;
    this.mark.hidden = !cell;
    if (!cell) return;
    const [wide, high] = [100 / this.map.w, 100 / this.map.h];
    this.mark.style.cssText = `left:${cell[1] * wide}%;top:${cell[0] * high}%;width:${wide}%;height:${high}%`;
  }
}
