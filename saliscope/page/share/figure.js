// A figure for saving: image and map side by side, the color bar with units, and a caption; as PNG, as SVG or PDF with
// contours as lines, or only the map with transparency. Drawn from the current view. Lengths are in units of 0.2 mm, in
// which the text has 14 units (8 points).
import { verdictOf } from "../drawing/verdict.js";
import { caption, sanitizeText } from "./caption.js";
import { contourLines } from "./contours.js";
import { options } from "./options.js";
import { Pdf } from "./formats/pdf.js";
import { withResolution } from "./formats/png.js";
import { Svg } from "./formats/svg.js";
import { table as tableOf } from "../drawing/colors.js";
import { RULE } from "../drawing/constants.js";
import { enlarge } from "../drawing/field.js";
import { Surface } from "../drawing/surface.js";
import { CLASS_COLORS } from "../drawing/objects.js";
import { paintPixels } from "../drawing/paint.js";

/**
 * @typedef {object} Panel an image and a map as they are shown
 * @property {HTMLImageElement | null} image
 * @property {import("../drawing/paint.js").Rendering} rendering
 * @property {Record<string, any>} value the answer
 * @property {{text: string, at: number}[]} ticks of the color bar
 * @property {string} label quantity and unit of the color bar
 * @property {string} drawing how the drawing differs from the map, as the page says below it
 * @property {HTMLCanvasElement} bar the color bar
 * @property {number} opacity
 * @property {boolean} mapOnly
 * @property {string} [name] name of the map among several
 */

const GAP = 16,
  BAR = 12,
  AXIS = 38, // ticks and label below the color bar
  LINE = 19,
  LETTER = 22, // letters above the panels
  UNITS = 5, // units of a millimeter
  MAP_SIDE = 1680, // pixels of a map without an image
  INK = "#1b1b1f",
  QUIET = "#5c5c66",
  PAPER = "#ffffff",
  DARK = "#000000";
const FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";

/** Return the pixels of a unit at the chosen resolution. */
const pixelsPerUnit = () => options.dpi / (25.4 * UNITS);

/** Draw the image and the map (or overlay) of a panel at this width in pixels; `lines`: with contours. */
function surfaces(panel, width, lines) {
  const canvas = document.createElement("canvas"),
    surface = new Surface(canvas);
  Object.assign(surface, { image: panel.image, rendering: lines ? panel.rendering : withoutLines(panel.rendering) });
  [canvas.width, canvas.height] = [width, Math.max(1, Math.round(width * surface.ratio))];
  surface.render(surface.own, canvas.width, canvas.height, true);
  return { photo: surface.own.photo, map: panel.mapOnly ? surface.mapLayer(surface.own) : surface.own.drawn };
}

const withoutLines = (rendering) => ({ ...rendering, lines: false });

/** Return the caption of a panel, with the verdict and what the page says below the map as its last sentences. */
function sentencesOf({ value, drawing }) {
  const sentences = value.caption || [value.words.title || value.words.alt];
  return [...sentences, verdictOf(value), drawing].filter(Boolean);
}

const ratioOf = ({ image }) => (image ? image.naturalHeight / image.naturalWidth : 1);

/** Compute all positions: the image, and next to it the panels, two per row. */
function layout(panels) {
  const across = Math.min(2, panels.length),
    columns = across + 1,
    wide = UNITS * options.width,
    side = (wide - 2 * GAP - (columns - 1) * GAP) / columns;
  const high = side * Math.max(...panels.map(ratioOf)),
    place = (k) => GAP + k * (side + GAP);
  const lines = (panel) =>
    options.caption ? caption(sentencesOf(panel), panel.name, panels.length > 1 ? side : wide - 2 * GAP, measure) : [];
  const cells = panels.map((panel, k) => ({
    panel,
    x: place(1 + (k % across)),
    row: Math.floor(k / across),
    lines: lines(panel),
  }));
  const above = options.letters ? LETTER : 0,
    deep = high + 8 + BAR + AXIS,
    tops = [GAP + above];
  for (let row = 0; row * across < panels.length; row++) {
    const most = Math.max(...cells.filter((cell) => cell.row === row).map((cell) => cell.lines.length));
    tops.push(tops[row] + deep + (most ? 10 + most * LINE : 0) + GAP + above);
  }
  for (const cell of cells) cell.y = tops[cell.row];
  return {
    width: wide,
    height: Math.round(tops.at(-1) - above),
    side,
    high,
    cells,
    photo: { x: GAP, y: tops[0] },
    caption: panels.length > 1 ? 0 : GAP,
  };
}

const pen = document.createElement("canvas").getContext("2d");

function measure(text, strong) {
  pen.font = `${strong ? "600 " : ""}14px ${FONT}`;
  return pen.measureText(text).width;
}

/** Draw the contours of a panel: white lines with a dark halo, and around negative values the reverse. */
function drawContours(drawer, panel, place) {
  const ratio = ratioOf(panel),
    [positive, negative] = contourLines(panel.rendering, ratio),
    thick = Math.max(1, RULE.line * Math.min(place[2], place[3])),
    opacity = panel.mapOnly ? 1 : panel.opacity;
  const draw = (lines, halo, color) => {
    if (!lines.length) return;
    drawer.lines(lines, place, { color: halo, thick: 3 * thick, opacity: RULE.halo * opacity });
    drawer.lines(lines, place, { color, thick, opacity });
  };
  draw(positive, DARK, PAPER);
  draw(negative, PAPER, DARK);
}

/** Return the ticks with their anchors; those between the ends are left out if they overlap others. */
function withoutOverlaps(ticks, side) {
  const kept = [];
  const spread = ticks.map(({ text, at }) => {
    const anchor = at < 0.05 ? "start" : at > 0.95 ? "end" : "middle",
      wide = measure(text, false), // a little larger than the ticks
      left = side * at - { start: 0, middle: 0.5, end: 1 }[anchor] * wide;
    return { text, at, anchor, span: [left, left + wide] };
  });
  const isEnd = ({ anchor }) => anchor !== "middle";
  for (const tick of [...spread.filter(isEnd), ...spread.filter((each) => !isEnd(each))])
    if (kept.every(({ span }) => tick.span[1] < span[0] || tick.span[0] > span[1])) kept.push(tick);
  return kept;
}

/** Draw the color bar of a panel with its ticks and label. */
function drawScale(drawer, { bar, ticks = [], label }, x, y, side) {
  drawer.image(bar, x, y, side, BAR, 1);
  for (const { text, at, anchor } of withoutOverlaps(ticks, side))
    drawer.text(text, x + side * at, y + BAR + 15, { anchor, size: 12, fill: QUIET });
  const axis = { anchor: "middle", size: 12, fill: QUIET };
  if (label) drawer.text(sanitizeText(label), x + side / 2, y + BAR + 32, axis);
}

/** Write the letters above the image and the maps: the names of several maps, or "a" and "b". */
function drawLetters(drawer, { cells, photo }) {
  const letter = (text, x, y) =>
    drawer.text(sanitizeText(text), x, y - 7, { anchor: "start", size: 14, fill: INK, strong: true });
  if (cells.length === 1) letter("a", photo.x, photo.y);
  for (const { panel, x, y } of cells) letter(panel.name || "b", x, y);
}

/**
 * Draw with any backend: {image, text, box}, and `lines` if it draws contours as lines.
 * @param {Panel[]} panels
 */
function compose(panels, plan, drawer) {
  const { side, photo } = plan,
    width = Math.round(pixelsPerUnit() * side),
    drawn = panels.map((panel) => surfaces(panel, width, !drawer.lines));
  drawer.image(drawn[0].photo, photo.x, photo.y, side, side * ratioOf(panels[0]), 1, true);
  plan.cells.forEach(({ panel, x, y, lines }, k) => {
    const tall = side * ratioOf(panel),
      place = [x, y, side, tall];
    if (!panel.mapOnly && panel.opacity < 1) drawer.image(drawn[k].photo, ...place, 1, true);
    drawer.image(drawn[k].map, ...place, panel.mapOnly ? 1 : panel.opacity);
    if (drawer.lines) drawContours(drawer, panel, place);
    const objects = panel.value.things,
      object = objects && objects.items[objects.chosen];
    if (object) {
      const [left, top, right, bottom] = object.box,
        color = CLASS_COLORS[object.color];
      drawer.box(x + side * left, y + tall * top, side * (right - left), tall * (bottom - top), color);
    }
    const below = y + plan.high + 8;
    drawScale(drawer, panel, x, below, side);
    lines.forEach(({ text, strong }, n) =>
      drawer.text(text, plan.caption || x, below + BAR + AXIS + 10 + (n + 0.75) * LINE, {
        anchor: "start",
        size: 14,
        fill: strong ? INK : QUIET,
        strong,
      }),
    );
  });
  if (options.letters) drawLetters(drawer, plan);
}

/** Write text on a canvas. */
function writeText(context, text, x, y, { anchor, size, fill, strong }) {
  context.font = `${strong ? "600 " : ""}${size}px ${FONT}`;
  [context.fillStyle, context.textAlign] = [fill, { start: "left", middle: "center", end: "right" }[anchor]];
  context.fillText(text, x, y);
}

/**
 * Create a PNG figure of one panel, or of up to four panels of one image.
 * @param {Panel[]} panels
 * @returns {Promise<Blob>}
 */
export async function png(panels) {
  const canvas = document.createElement("canvas"),
    context = canvas.getContext("2d"),
    plan = layout(panels),
    scale = pixelsPerUnit();
  [canvas.width, canvas.height] = [Math.round(scale * plan.width), Math.round(scale * plan.height)];
  context.scale(scale, scale);
  context.fillStyle = PAPER;
  context.fillRect(0, 0, plan.width, plan.height);
  context.imageSmoothingQuality = "high";
  compose(panels, plan, {
    image(source, x, y, width, height, opacity) {
      context.globalAlpha = opacity;
      context.drawImage(source, x, y, width, height);
      context.globalAlpha = 1;
    },
    box(x, y, width, height, color) {
      [context.strokeStyle, context.lineWidth] = [color, 2];
      context.strokeRect(x, y, width, height);
    },
    text: (...values) => writeText(context, ...values),
  });
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  return withResolution(blob, options.dpi);
}

/**
 * Create the same figure as SVG: images are embedded, text stays text, contours are lines.
 * @param {Panel[]} panels
 * @returns {Blob}
 */
export function svg(panels) {
  const plan = layout(panels),
    page = new Svg(plan.width, plan.height, UNITS, FONT);
  page.add("rect", { width: "100%", height: "100%", fill: PAPER });
  compose(panels, plan, page);
  return page.finish();
}

/**
 * Create the same figure as PDF with text and contours as vector graphics. Text that the font lacks becomes an image.
 * @param {Panel[]} panels
 * @returns {Promise<Blob>}
 */
export function pdf(panels) {
  const plan = layout(panels),
    page = new Pdf(plan.width, plan.height);
  const textImage = (text, x, y, style) => {
    const canvas = document.createElement("canvas"),
      context = canvas.getContext("2d"),
      scale = pixelsPerUnit(),
      left = { start: 0, middle: x - GAP, end: x - GAP }[style.anchor],
      wide = plan.width - GAP - (x - left);
    [canvas.width, canvas.height] = [Math.ceil(scale * wide), Math.ceil(scale * 2 * style.size)];
    context.scale(scale, scale);
    writeText(context, text, left, 1.4 * style.size, style);
    page.image(canvas, x - left, y - 1.4 * style.size, wide, 2 * style.size, 1);
  };
  compose(panels, plan, {
    image: (...values) => page.image(...values),
    box: (...values) => page.box(...values),
    lines: (...values) => page.lines(...values),
    text: (...values) => page.text(...values) || textImage(...values),
  });
  return page.finish();
}

/**
 * Draw only the map with its colormap; opacity grows with the value, and cells without a value stay transparent.
 * @param {Panel} panel
 * @returns {Promise<Blob>}
 */
export function transparent({ image, rendering }) {
  const canvas = document.createElement("canvas"),
    width = MAP_SIDE,
    height = Math.max(1, Math.round(width * ratioOf({ image })));
  const { low, high, colors, smooth } = rendering,
    values = enlarge(rendering, width, height, smooth),
    table = tableOf(colors),
    signed = colors === "signed";
  paintPixels(canvas, width, height, (pixels) => {
    for (let i = 0, p = 0; i < values.length; i++, p += 4) {
      const share = signed ? values[i] / high : (values[i] - low) / (high - low);
      const within = Math.max(signed ? -1 : 0, Math.min(1, share));
      if (Number.isNaN(within)) continue;
      const at = 3 * Math.round(255 * (signed ? (1 + within) / 2 : within));
      for (let c = 0; c < 3; c++) pixels[p + c] = table[at + c];
      pixels[p + 3] = Math.round(255 * Math.abs(within) ** RULE.curve);
    }
  });
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
