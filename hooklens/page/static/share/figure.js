// A figure for saving: image and map side by side, the color bar with units, and a caption; as PNG at twice the size,
// as SVG, or only the map with transparency. Drawn from the current view.
import { caption, sanitizeText } from "./caption.js";
import { table } from "../drawing/colors.js";
import { RULE } from "../drawing/constants.js";
import { enlarge } from "../drawing/field.js";
import { Surface } from "../drawing/surface.js";
import { CLASS_COLORS } from "../drawing/objects.js";

/**
 * @typedef {object} Panel an image and a map as they are shown
 * @property {HTMLImageElement | null} image
 * @property {import("../drawing/paint.js").Rendering} rendering
 * @property {object} value the answer
 * @property {{text: string, at: number}[]} ticks of the color bar
 * @property {string} label quantity and unit of the color bar
 * @property {string} drawing how the drawing differs from the map, as the page says below it
 * @property {HTMLCanvasElement} bar the color bar
 * @property {number} opacity
 * @property {boolean} mapOnly
 * @property {string} [name] name of the map among several
 */

const SIDE = 420,
  GAP = 16,
  BAR = 12,
  AXIS = 38, // ticks and label below the color bar
  LINE = 19,
  SCALE = 2,
  INK = "#1b1b1f",
  QUIET = "#5c5c66",
  PAPER = "#ffffff";
const FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";

/** Draw the image and the map (or overlay) of a panel at this width in pixels. */
function surfaces(panel, width) {
  const canvas = document.createElement("canvas"),
    surface = new Surface(canvas);
  Object.assign(surface, { image: panel.image, rendering: panel.rendering });
  [canvas.width, canvas.height] = [width, Math.max(1, Math.round(width * surface.ratio))];
  surface.render(surface.own, canvas.width, canvas.height, true);
  return { photo: surface.own.photo, map: panel.mapOnly ? surface.mapLayer(surface.own) : surface.own.drawn };
}

/** Return the answer with what the page says below the map as the last sentence of its caption. */
function described({ value, drawing }) {
  const sentences = value.caption || [value.words.title || value.words.alt];
  return drawing ? { ...value, caption: [...sentences, drawing] } : value;
}

/** Compute all positions in CSS pixels: the image, and next to it the panels, two per row. */
function layout(panels, measure) {
  const high = Math.max(
    ...panels.map(({ image }) => (image ? (SIDE * image.naturalHeight) / image.naturalWidth : SIDE)),
  );
  const across = Math.min(2, panels.length),
    columns = across + 1;
  const wide = 2 * GAP + columns * SIDE + (columns - 1) * GAP,
    place = (k) => GAP + k * (SIDE + GAP);
  const cells = panels.map((panel, k) => ({
    panel,
    x: place(1 + (k % across)),
    row: Math.floor(k / across),
    lines: caption(described(panel), panel.name, panels.length > 1 ? SIDE : wide - 2 * GAP, measure),
  }));
  const deep = high + 8 + BAR + AXIS,
    tops = [GAP];
  for (let row = 0; row * across < panels.length; row++) {
    const most = Math.max(...cells.filter((cell) => cell.row === row).map(({ lines }) => lines.length));
    tops.push(tops[row] + deep + 10 + most * LINE + GAP);
  }
  for (const cell of cells) cell.y = tops[cell.row];
  return {
    width: wide,
    height: Math.round(tops.at(-1)),
    high,
    cells,
    photo: { x: GAP, y: GAP },
    caption: panels.length > 1 ? 0 : GAP,
  };
}

const pen = document.createElement("canvas").getContext("2d");

function measure(text, strong) {
  pen.font = `${strong ? "600 " : ""}14px ${FONT}`;
  return pen.measureText(text).width;
}

/** Draw with any backend: {image, text, box}. */
function compose(panels, drawer) {
  const plan = layout(panels, measure);
  const drawn = panels.map((panel) => surfaces(panel, SCALE * SIDE));
  const high = ({ image }) => (image ? (SIDE * image.naturalHeight) / image.naturalWidth : SIDE);
  drawer.image(drawn[0].photo, plan.photo.x, plan.photo.y, SIDE, high(panels[0]), 1, true);
  plan.cells.forEach(({ panel, x, y, lines }, k) => {
    const tall = high(panel);
    if (!panel.mapOnly && panel.opacity < 1) drawer.image(drawn[k].photo, x, y, SIDE, tall, 1, true);
    drawer.image(drawn[k].map, x, y, SIDE, tall, panel.mapOnly ? 1 : panel.opacity);
    const objects = panel.value.things,
      object = objects && objects.items[objects.chosen];
    if (object)
      drawer.box(
        x + SIDE * object.box[0],
        y + tall * object.box[1],
        SIDE * (object.box[2] - object.box[0]),
        tall * (object.box[3] - object.box[1]),
        CLASS_COLORS[object.colour],
      );
    const below = y + plan.high + 8;
    drawer.image(panel.bar, x, below, SIDE, BAR, 1);
    for (const { text, at } of panel.ticks) {
      const anchor = at < 0.05 ? "start" : at > 0.95 ? "end" : "middle";
      drawer.text(text, x + SIDE * at, below + BAR + 15, { anchor, size: 12, fill: QUIET });
    }
    const axis = { anchor: "middle", size: 12, fill: QUIET };
    if (panel.label) drawer.text(sanitizeText(panel.label), x + SIDE / 2, below + BAR + 32, axis);
    lines.forEach(({ text, strong }, n) =>
      drawer.text(text, plan.caption || x, below + BAR + AXIS + 10 + (n + 0.75) * LINE, {
        anchor: "start",
        size: 14,
        fill: strong ? INK : QUIET,
        strong,
      }),
    );
  });
  return plan;
}

/**
 * Create a PNG figure of one panel, or of up to four panels of one image.
 * @param {Panel[]} panels
 * @returns {Promise<Blob>}
 */
export function png(panels) {
  const canvas = document.createElement("canvas"),
    context = canvas.getContext("2d"),
    steps = [];
  const record =
    (name) =>
    (...values) =>
      steps.push([name, values]);
  const plan = compose(panels, { image: record("image"), text: record("text"), box: record("box") });
  [canvas.width, canvas.height] = [SCALE * plan.width, SCALE * plan.height];
  context.scale(SCALE, SCALE);
  context.fillStyle = PAPER;
  context.fillRect(0, 0, plan.width, plan.height);
  context.imageSmoothingQuality = "high";
  const draw = {
    image(source, x, y, width, height, opacity) {
      context.globalAlpha = opacity;
      context.drawImage(source, x, y, width, height);
      context.globalAlpha = 1;
    },
    box(x, y, width, height, color) {
      [context.strokeStyle, context.lineWidth] = [color, 2];
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

/**
 * Create the same figure as SVG: images are embedded, text stays text.
 * @param {Panel[]} panels
 * @returns {Blob}
 */
export function svg(panels) {
  const space = "http://www.w3.org/2000/svg",
    root = document.createElementNS(space, "svg");
  const add = (tag, attributes, text) => {
    const node = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes))
      if (value !== undefined)
        node.setAttribute(name, typeof value === "number" ? String(Math.round(100 * value) / 100) : value);
    if (text !== undefined) node.textContent = text;
    root.append(node);
  };
  add("rect", { width: "100%", height: "100%", fill: PAPER });
  const plan = compose(panels, {
    image: (source, x, y, width, height, opacity, photo) =>
      add("image", {
        x,
        y,
        width,
        height,
        opacity: opacity < 1 ? opacity : undefined,
        preserveAspectRatio: "none",
        href: source.toDataURL(photo ? "image/jpeg" : "image/png", 0.92),
      }),
    box: (x, y, width, height, stroke) => add("rect", { x, y, width, height, fill: "none", stroke, "stroke-width": 2 }),
    text: (text, x, y, { anchor, size, fill, strong }) =>
      add(
        "text",
        {
          x,
          y,
          "text-anchor": anchor,
          "font-size": size,
          fill,
          "font-family": FONT,
          "font-weight": strong ? "600" : undefined,
        },
        text,
      ),
  });
  for (const [name, value] of [
    ["width", plan.width],
    ["height", plan.height],
    ["viewBox", `0 0 ${plan.width} ${plan.height}`],
  ])
    root.setAttribute(name, value);
  return new Blob(['<?xml version="1.0" encoding="UTF-8"?>\n', new XMLSerializer().serializeToString(root), "\n"], {
    type: "image/svg+xml",
  });
}

/**
 * Draw only the map with its colormap; opacity grows with the value, and cells without a value stay transparent.
 * @param {Panel} panel
 * @returns {Promise<Blob>}
 */
export function transparent({ image, rendering }) {
  const canvas = document.createElement("canvas"),
    width = SCALE * 2 * SIDE;
  [canvas.width, canvas.height] = [
    width,
    Math.max(1, Math.round(image ? (width * image.naturalHeight) / image.naturalWidth : width)),
  ];
  const context = canvas.getContext("2d"),
    pixels = context.createImageData(canvas.width, canvas.height);
  const values = enlarge(rendering, canvas.width, canvas.height, rendering.smooth),
    colors = table(rendering.colors),
    signed = rendering.colors === "signed";
  for (let i = 0, p = 0; i < values.length; i++, p += 4) {
    const share = signed ? values[i] / rendering.high : (values[i] - rendering.low) / (rendering.high - rendering.low);
    const within = Math.max(signed ? -1 : 0, Math.min(1, share));
    if (Number.isNaN(within)) continue;
    const at = 3 * Math.round(255 * (signed ? (1 + within) / 2 : within));
    for (let c = 0; c < 3; c++) pixels.data[p + c] = colors[at + c];
    pixels.data[p + 3] = Math.round(255 * Math.abs(within) ** RULE.curve);
  }
  context.putImageData(pixels, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
