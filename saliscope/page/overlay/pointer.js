// The cell under the pointer or keyboard cursor: its mark, its value, and the object there.
import { STEPS, stay } from "../drawing/cells.js";
import { peak } from "../drawing/field.js";
import { forPointer } from "../shared/touch.js";
import { describeCell, make } from "../wire.js";

const within = (part, cells) => stay(Math.floor(part * cells), cells);

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
    this.point();
    this.keys();
  }

  /** Set another map, or null; the selected cell stays if possible. */
  over(map, words, keep = true) {
    Object.assign(this, { map, words });
    this.mark(...((keep && map && this.cell) || [null]));
  }

  point() {
    const { canvas } = this;
    const place = (event) => {
      const rect = canvas.getBoundingClientRect();
      return [(event.clientX - rect.left) / rect.width, (event.clientY - rect.top) / rect.height];
    };
    const over = (event) => {
      const [x, y] = place(event);
      canvas.style.cursor = this.objects.take(x, y) ? "pointer" : "";
      if (this.map) this.mark(within(y, this.map.h), within(x, this.map.w), x, y);
      else this.read.textContent = this.objects.point(x, y);
    };
    canvas.addEventListener("click", (event) => this.take(...place(event)));
    for (const name of ["pointermove", "pointerdown"]) canvas.addEventListener(name, over);
    canvas.addEventListener("pointerleave", () => {
      if (document.activeElement !== canvas) this.mark(null);
    });
    canvas.addEventListener("blur", () => this.mark(null));
    canvas.addEventListener("focus", () => {
      if (this.map && !this.cell && canvas.matches(":focus-visible")) this.mark(...peak(this.map));
    });
  }

  keys() {
    const { canvas } = this;
    for (const name of ["keyup", "blur"]) canvas.addEventListener(name, () => this.peek(false));
    canvas.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        return this.peek(true);
      }
      if (event.key === "Enter" && this.cell) return this.take(...this.middle(...this.cell));
      const step = STEPS[event.key];
      if (!step || !this.map) return;
      event.preventDefault();
      const [row, column] = this.cell || peak(this.map);
      const far = event.shiftKey ? Math.max(1, Math.round(this.map.w / 16)) : 1;
      this.mark(stay(row + far * step[0], this.map.h), stay(column + far * step[1], this.map.w));
    });
  }

  /** Return the center of a cell as a relative position. */
  middle(row, column) {
    return [(column + 0.5) / this.map.w, (row + 0.5) / this.map.h];
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
    const [wide, high] = [100 / map.w, 100 / map.h];
    box.style.cssText = `left:${column * wide}%;top:${row * high}%;width:${wide}%;height:${high}%`;
    const { unit } = this.words,
      object = this.objects.point(...(x === undefined ? this.middle(row, column) : [x, y]));
    this.read.textContent = describeCell(this.terms, map, row, column, unit) + (object ? ` · ${object}` : "");
  }
}
