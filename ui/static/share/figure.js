// A figure to keep: photograph and map side by side, the colour bar in units, and a caption that says what the map is; as
// PNG at twice the size, as SVG, or the map alone with its transparency. Drawn from what is on the screen.
//
// A plate is {image, look, value, ends, bar, opacity, alone, name}: the photograph, the map as it is drawn (`view` in
// paint.js), the answer, of the colour bar its canvas and the words below it, and a
// name where there are several.
import { caption, words } from "./caption.js";
import { table } from "../drawing/colours.js";
import { enlarge } from "../drawing/field.js";
import { RULE } from "../drawing/paint.js";
import { Surface } from "../drawing/surface.js";
import { COLOURS } from "../drawing/things.js";

const SIDE = 420, GAP = 16, BAR = 12, LINE = 19, SCALE = 2, INK = "#1b1b1f", QUIET = "#5c5c66", PAPER = "#ffffff";
export const FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";

/** Photograph, overlay and map alone of a plate, so many pixels wide. */
function surfaces(plate, width) {
  const canvas = document.createElement("canvas"), surface = new Surface(canvas);
  Object.assign(surface, { image: plate.image, look: plate.look });
  [canvas.width, canvas.height] = [width, Math.max(1, Math.round(width * surface.ratio))];
  surface.render(surface.own, canvas.width, canvas.height, true);
  return { photo: surface.own.photo, map: plate.alone ? surface.bare(surface.own) : surface.own.drawn };
}

/** Where everything stands, in CSS pixels: the photograph, and beside it the plates, two in a row. */
function layout(plates, measure) {
  const high = Math.max(...plates.map(({ image }) => (image ? (SIDE * image.naturalHeight) / image.naturalWidth : SIDE)));
  const across = Math.min(2, plates.length), columns = across + 1;
  const wide = 2 * GAP + columns * SIDE + (columns - 1) * GAP, place = (k) => GAP + k * (SIDE + GAP);
  const cells = plates.map((plate, k) => ({ plate, x: place(1 + (k % across)), row: Math.floor(k / across),
    lines: caption(plate.value, plate.name, plates.length > 1 ? SIDE : wide - 2 * GAP, measure) }));
  const deep = high + 8 + BAR + 20, tops = [GAP];
  for (let row = 0; row * across < plates.length; row++) {
    const most = Math.max(...cells.filter((cell) => cell.row === row).map(({ lines }) => lines.length));
    tops.push(tops[row] + deep + 10 + most * LINE + GAP);
  }
  for (const cell of cells) cell.y = tops[cell.row];
  return { width: wide, height: Math.round(tops.at(-1)), high, cells, photo: { x: GAP, y: GAP }, caption: plates.length > 1 ? 0 : GAP };
}

const pen = document.createElement("canvas").getContext("2d");

function measure(text, strong) {
  pen.font = `${strong ? "600 " : ""}14px ${FONT}`;
  return pen.measureText(text).width;
}

/** The steps of drawing, for whoever draws: {picture, text, box}. */
function compose(plates, drawer) {
  const plan = layout(plates, measure);
  const drawn = plates.map((plate) => surfaces(plate, SCALE * SIDE));
  const high = ({ image }) => (image ? (SIDE * image.naturalHeight) / image.naturalWidth : SIDE);
  drawer.picture(drawn[0].photo, plan.photo.x, plan.photo.y, SIDE, high(plates[0]), 1, true);
  plan.cells.forEach(({ plate, x, y, lines }, k) => {
    const tall = high(plate);
    if (!plate.alone && plate.opacity < 1) drawer.picture(drawn[k].photo, x, y, SIDE, tall, 1, true);
    drawer.picture(drawn[k].map, x, y, SIDE, tall, plate.alone ? 1 : plate.opacity);
    const things = plate.value.things, thing = things && things.items[things.chosen];
    if (thing) drawer.box(x + SIDE * thing.box[0], y + tall * thing.box[1], SIDE * (thing.box[2] - thing.box[0]), tall * (thing.box[3] - thing.box[1]), COLOURS[thing.colour]);
    const below = y + plan.high + 8;
    drawer.picture(plate.bar, x, below, SIDE, BAR, 1);
    pen.font = `12px ${FONT}`;
    const [, middle = "", last = ""] = plate.ends, crowded = pen.measureText(last).width + pen.measureText(middle).width / 2 + GAP > SIDE / 2;
    plate.ends.forEach((end, n) => (n === 1 && crowded) || !end || drawer.text(words(end), x + (SIDE * n) / (plate.ends.length - 1), below + BAR + 15,
      { anchor: ["start", "middle", "end"][n] || "end", size: 12, fill: QUIET }));
    lines.forEach(({ text, strong }, n) => drawer.text(text, plan.caption || x, below + BAR + 20 + 10 + (n + 0.75) * LINE,
      { anchor: "start", size: 14, fill: strong ? INK : QUIET, strong }));
  });
  return plan;
}

/** The figure of one plate, or of up to four of one photograph, as a PNG. */
export function png(plates) {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d"), steps = [];
  const record = (name) => (...values) => steps.push([name, values]);
  const plan = compose(plates, { picture: record("picture"), text: record("text"), box: record("box") });
  [canvas.width, canvas.height] = [SCALE * plan.width, SCALE * plan.height];
  context.scale(SCALE, SCALE);
  context.fillStyle = PAPER;
  context.fillRect(0, 0, plan.width, plan.height);
  context.imageSmoothingQuality = "high";
  const draw = {
    picture(source, x, y, width, height, opacity) {
      context.globalAlpha = opacity;
      context.drawImage(source, x, y, width, height);
      context.globalAlpha = 1;
    },
    box(x, y, width, height, colour) {
      [context.strokeStyle, context.lineWidth] = [colour, 2];
      context.strokeRect(x, y, width, height);
    },
    text(text, x, y, { anchor, size, fill, strong }) {
      context.font = `${strong ? "600 " : ""}${size}px ${FONT}`;
      [context.fillStyle, context.textAlign] = [fill, { start: "left", middle: "center", end: "right" }[anchor]];
      context.fillText(text, x, y);
    },
  };
  for (const [name, values] of steps) draw[name](...values);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** The same as SVG: the pictures are embedded, the words are text. */
export function svg(plates) {
  const space = "http://www.w3.org/2000/svg", root = document.createElementNS(space, "svg");
  const add = (tag, attributes, text) => {
    const node = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(name, typeof value === "number" ? String(Math.round(100 * value) / 100) : value);
    if (text !== undefined) node.textContent = text;
    root.append(node);
  };
  add("rect", { width: "100%", height: "100%", fill: PAPER });
  const plan = compose(plates, {
    picture: (source, x, y, width, height, opacity, photo) => add("image", { x, y, width, height, opacity: opacity < 1 ? opacity : undefined,
      preserveAspectRatio: "none", href: source.toDataURL(photo ? "image/jpeg" : "image/png", 0.92) }),
    box: (x, y, width, height, stroke) => add("rect", { x, y, width, height, fill: "none", stroke, "stroke-width": 2 }),
    text: (text, x, y, { anchor, size, fill, strong }) => add("text", { x, y, "text-anchor": anchor, "font-size": size, fill,
      "font-family": FONT, "font-weight": strong ? "600" : undefined }, text),
  });
  for (const [name, value] of [["width", plan.width], ["height", plan.height], ["viewBox", `0 0 ${plan.width} ${plan.height}`]]) root.setAttribute(name, value);
  return new Blob(['<?xml version="1.0" encoding="UTF-8"?>\n', new XMLSerializer().serializeToString(root), "\n"], { type: "image/svg+xml" });
}

/** The map alone: the colours of its table, the more opaque the larger the value; nothing where there is none. */
export function transparent({ image, look }) {
  const canvas = document.createElement("canvas"), width = SCALE * 2 * SIDE;
  [canvas.width, canvas.height] = [width, Math.max(1, Math.round(image ? (width * image.naturalHeight) / image.naturalWidth : width))];
  const context = canvas.getContext("2d"), pixels = context.createImageData(canvas.width, canvas.height);
  const values = enlarge(look, canvas.width, canvas.height, look.smooth), colours = table(look.colours), signed = look.colours === "signed";
  for (let i = 0, p = 0; i < values.length; i++, p += 4) {
    const share = signed ? values[i] / look.high : (values[i] - look.low) / (look.high - look.low);
    const within = Math.max(signed ? -1 : 0, Math.min(1, share));
    if (Number.isNaN(within)) continue;
    const at = 3 * Math.round(255 * (signed ? (1 + within) / 2 : within));
    for (let c = 0; c < 3; c++) pixels.data[p + c] = colours[at + c];
    pixels.data[p + 3] = Math.round(255 * Math.abs(within) ** RULE.curve);
  }
  context.putImageData(pixels, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
