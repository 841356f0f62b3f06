// The cell under the pointer or keyboard cursor: its mark, its value, and the object there.
import { cellAt, centerOf, followCells, positionIn } from "../drawing/cells.js";
import { placeOfCell } from "../shared/elements.js";
import { forPointer } from "../shared/touch.js";
import { describeCell, make } from "../wire.js";

export class Pointer {
  /**
   * `report(cell)` gets the selected cell; `take(x, y)` requests the object at a position; `peek(on)` shows only the
   * image.
   */
  constructor(terms, canvas, objects, { report, take, peek }) {
    this.terms = terms;
    this.canvas = canvas;
    this.objects = objects;
    this.report = report;
    this.take = take;
    this.peek = peek;
    this.map = null;
    this.words = {};
    this.cell = null;
    this.box = make("div", { class: "hl-cell", hidden: true });
    this.read = make("output", { class: "hl-read", "aria-live": "polite" });
    this.listen();
  }

  /** Set another map, or null; the selected cell stays if possible. */
  over(map, words, keep = true) {
    Object.assign(this, { map, words });
    this.mark(...((keep && map && this.cell) || [null]));
  }

  listen() {
    const { canvas } = this;
    followCells(canvas, {
      map: () => this.map,
      cell: () => this.cell,
      over: (x, y) => {
        canvas.style.cursor = this.objects.take(x, y) ? "pointer" : "";
        if (this.map) this.mark(...cellAt(x, y, this.map), x, y);
        else this.read.textContent = this.objects.point(x, y);
      },
      mark: (row, column) => this.mark(row, column),
      leave: () => this.mark(null),
    });
    canvas.addEventListener("click", (event) => this.take(...positionIn(canvas, event)));
    for (const name of ["keyup", "blur"]) canvas.addEventListener(name, () => this.peek(false));
    canvas.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        this.peek(true);
      } else if (event.key === "Enter" && this.cell) this.take(...centerOf(...this.cell, this.map));
    });
  }

  /** Mark cell (row, column) and show its value and the object at (x, y); null removes the mark. */
  mark(row, column, x, y) {
    const { map, box } = this,
      cell = map && Number.isInteger(row) ? { row, column } : null;
    this.report(cell);
    box.hidden = !cell;
    if (!cell) {
      this.cell = null;
      this.objects.point(null);
      this.read.textContent = map ? forPointer(this.words.hint || "") : "";
      return;
    }
    this.cell = [row, column];
    box.style.cssText = placeOfCell(row, column, map);
    const { unit } = this.words,
      object = this.objects.point(...(x === undefined ? centerOf(row, column, map) : [x, y]));
    this.read.textContent = describeCell(this.terms, map, row, column, unit) + (object ? ` · ${object}` : "");
  }
}
