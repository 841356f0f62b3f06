// The canvas over the image before the edit: the region, and the brush and the rectangle that change it.
import { decodeShape, encode, encodePoints, simplify } from "./strokes.js";
import { positionIn } from "../drawing/cells.js";
import { paintPixels } from "../drawing/paint.js";
import { bytes, fill, make } from "../wire.js";

const TINT = [214, 51, 132],
  ALPHA = 130, // of the region
  STRIPE = 70, // of every other stripe of the region
  TOLERANCE = 0.15, // of the radius: how far a stroke may be simplified
  KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Return the pixels of a mask as an image. */
function maskImage({ h, w, b64 }) {
  const bits = bytes(b64),
    canvas = document.createElement("canvas");
  paintPixels(canvas, w, h, (pixels) => {
    for (let i = 0; i < h * w; i++) {
      if (!((bits[i >> 3] >> (7 - (i & 7))) & 1)) continue;
      const striped = ((Math.floor(i / w) + (i % w)) >> 2) & 1;
      pixels.set([...TINT, striped ? ALPHA : STRIPE], 4 * i);
    }
  });
  return canvas;
}

/** @typedef {{tool: "brush" | "box", add: boolean, size: number}} Brush `size` is the diameter, of the shorter side */

export class Painter {
  /**
   * @param {Record<string, any>} terms
   * @param {() => Brush} brush the current settings
   * @param {{commit: (token: string) => void, point: (x: ?number, y?: number) => void}} acts
   */
  constructor(terms, brush, acts) {
    this.terms = terms;
    this.brush = brush;
    this.acts = acts;
    this.mask = null;
    this.shapes = [];
    this.live = null;
    this.cursor = null;
    const label = { role: "application", "aria-label": terms.canvas };
    this.canvas = make("canvas", { class: "hl-erase-paint", tabindex: 0, ...label });
    this.says = make("output", { class: "hl-quiet hl-unseen-text" });
    this.root = make("div", { class: "hl-erase-layer" }, this.canvas, this.says);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      event.preventDefault();
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
      this.start(this.position(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      const moves = this.live ? event.getCoalescedEvents?.() || [] : [];
      for (const each of moves.length ? moves : [event]) this.move(this.position(each));
    });
    canvas.addEventListener("pointerup", (event) => this.finish(this.position(event)));
    canvas.addEventListener("pointercancel", () => this.cancel());
    canvas.addEventListener("pointerleave", () => {
      if (this.live || document.activeElement === canvas) return;
      this.acts.point(null);
      this.showCursor(null);
    });
    canvas.addEventListener("blur", () => {
      this.cancel();
      this.acts.point(null);
      this.showCursor(null);
    });
    canvas.addEventListener("focus", () => {
      if (canvas.matches(":focus-visible") && !this.cursor) this.moveCursor([0.5, 0.5]);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  position(event) {
    return positionIn(this.canvas, event).map((part) => Math.min(1, Math.max(0, part)));
  }

  /** Arrow keys move the brush by its radius (with Shift: by a percent), Space paints, Enter sets a corner. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = KEYS[event.key],
      at = this.cursor || [0.5, 0.5];
    if (step) {
      const far = event.shiftKey ? 0.01 : Math.max(0.01, this.brush().size / 2);
      this.moveCursor(at.map((part, k) => Math.min(1, Math.max(0, part + far * step[k]))));
    } else if (event.key === " " || event.key === "Enter") this.press(at);
    else if (event.key === "Escape" && this.live) this.cancel();
    else return;
    event.preventDefault();
  }

  moveCursor(at) {
    this.showCursor(at);
    this.move(at);
    this.says.textContent = fill(this.terms.brush_at, { x: Math.round(100 * at[0]), y: Math.round(100 * at[1]) });
  }

  press(at) {
    if (this.brush().tool === "brush") {
      this.start(at);
      this.finish(at);
    } else if (this.live) this.finish(at);
    else this.start(at);
  }

  start(at) {
    this.live = { ...this.brush(), points: [at] };
    this.showCursor(at);
  }

  move(at) {
    this.acts.point(at[0], at[1]);
    if (this.live) {
      const { tool, points } = this.live;
      if (tool === "box") this.live.points = [points[0], at];
      else points.push(at);
    }
    this.showCursor(at);
  }

  finish(at) {
    if (!this.live) return;
    const { tool, add, size, points } = this.live;
    this.live = null;
    const name = `${add ? "" : "un"}${tool}`;
    let token = `${name}.${encodePoints([points[0], at])}`;
    if (tool === "brush") {
      const line = simplify([...points, at], (TOLERANCE * size) / 2);
      const texts = line.map((point) => encodePoints([point])),
        isDot = texts.every((text) => text === texts[0]);
      token = `${name}.${encode(size / 2)}.${isDot ? texts[0] : texts.join("")}`;
    }
    this.shapes.push(decodeShape(token));
    this.draw();
    this.acts.commit(token);
  }

  cancel() {
    this.live = null;
    this.draw();
  }

  /** Show the region of an answer, and shapes that no answer has yet. */
  show(mask, shapes = []) {
    if (mask !== this.mask) this.image = mask ? maskImage(mask) : null;
    Object.assign(this, { mask, shapes });
    this.draw();
  }

  showCursor(at) {
    this.cursor = at;
    this.draw();
  }

  draw() {
    const { canvas } = this,
      ratio = window.devicePixelRatio || 1,
      [width, height] = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.round(ratio * side));
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    if (this.image) context.drawImage(this.image, 0, 0, width, height);
    const { live } = this;
    const drawn = live && { kind: live.tool, add: live.add, radius: live.size / 2, points: live.points };
    for (const shape of [...this.shapes, ...(drawn ? [drawn] : [])]) this.drawShape(context, shape, width, height);
    if (this.cursor) this.drawCursor(context, width, height, ratio);
  }

  drawShape(context, { kind, add, radius, points }, width, height) {
    context.globalCompositeOperation = add ? "source-over" : "destination-out";
    context.strokeStyle = context.fillStyle = add ? `rgba(${TINT}, ${ALPHA / 255})` : "#000";
    const scaled = points.map(([x, y]) => [x * width, y * height]);
    if (kind === "box") {
      const [[x0, y0], [x1, y1] = [x0, y0]] = scaled;
      context.fillRect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0));
    } else {
      context.lineWidth = 2 * radius * Math.min(width, height);
      context.lineCap = context.lineJoin = "round";
      context.beginPath();
      context.moveTo(...scaled[0]);
      for (const point of scaled) context.lineTo(...point);
      context.stroke();
    }
    context.globalCompositeOperation = "source-over";
  }

  /** Draw the outline of the brush, or a cross for the rectangle. */
  drawCursor(context, width, height, ratio) {
    const { tool, size } = this.brush(),
      [x, y] = [this.cursor[0] * width, this.cursor[1] * height],
      arm = 8 * ratio;
    const path = new Path2D();
    if (tool === "brush") path.arc(x, y, Math.max(1, (size / 2) * Math.min(width, height)), 0, 2 * Math.PI);
    else {
      path.moveTo(x - arm, y);
      path.lineTo(x + arm, y);
      path.moveTo(x, y - arm);
      path.lineTo(x, y + arm);
    }
    const stroke = (ink, wide) => {
      Object.assign(context, { strokeStyle: ink, lineWidth: wide * ratio });
      context.stroke(path);
    };
    stroke("#000", 3);
    stroke("#fff", 1.5);
  }
}
