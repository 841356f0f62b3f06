// Images and maps of a report or a comparison, which contains its data. The scripts are joined, see page.py.
import { draw, view } from "../../../page/drawing/paint.js";
import { bytes, formatShare, make } from "../../../page/wire.js";

export const DATA = JSON.parse(document.getElementById("data").textContent);
export const $ = (query, within = document) => within.querySelector(query);
export const $$ = (query, within = document) => [...within.querySelectorAll(query)];

/** Return a share as a percentage; an empty string if it is unknown. */
export const percent = (share) => (share === null || share === undefined ? "" : formatShare(share));

// Maps and images

const unpacked = new Map();

/** Return map number k: {h, w, values}. */
export function mapOf(k) {
  if (!unpacked.has(k)) {
    const { h, w, m, b } = DATA.maps[k],
      steps = new Int8Array(bytes(b).buffer);
    unpacked.set(k, { h, w, values: Float32Array.from(steps, (step) => (step / 127) * m) });
  }
  return unpacked.get(k);
}

const loading = new Map();
const loaded = new Map();

function load(source) {
  return new Promise((done) => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = () => done(null);
    if (source) image.src = source;
    else done(null);
  });
}

/** Return a promise of image number k, or of null if the image is not available. */
export function photo(k) {
  if (!loading.has(k)) {
    const image = load(DATA.images[k].image);
    image.then((found) => loaded.set(k, found));
    loading.set(k, image);
  }
  return loading.get(k);
}

/** Draw an image, a map with an opacity, or both, into a canvas. */
export function drawInto(canvas, image, map, { opacity = 1, limit = null, signed = false } = {}) {
  const { width, height } = canvas,
    context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#808080";
  context.fillRect(0, 0, width, height);
  if (image) context.drawImage(image, 0, 0, width, height);
  if (!map || !opacity) return;
  const under = context.getImageData(0, 0, width, height);
  const over = new ImageData(new Uint8ClampedArray(under.data), width, height);
  const both = signed || map.values.some((value) => value < 0);
  /** @type {[number, number]} */
  const limits = limit ? [both ? -limit : 0, limit] : null;
  draw(over.data, width, height, view(map, { colors: signed ? "signed" : "auto", limits }));
  for (let p = 0; p < over.data.length; p++) under.data[p] += (over.data[p] - under.data[p]) * opacity;
  context.putImageData(under, 0, 0);
}

async function paintCanvas(canvas) {
  const { photo: which } = canvas.dataset;
  if (which !== undefined) await photo(Number(which));
  paintNow(canvas);
}

/** Draw a canvas whose image is loaded. */
function paintNow(canvas) {
  const { map, photo: which, limit, plain, signed } = canvas.dataset;
  const image = which === undefined ? null : loaded.get(Number(which)) || null;
  const options = { limit: limit ? Number(limit) : null, signed: signed !== undefined };
  drawInto(canvas, image, map === undefined || plain !== undefined ? null : mapOf(Number(map)), options);
  canvas.dataset.drawn = "";
}

const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      paintCanvas(entry.target);
    }
  },
  { rootMargin: "400px" },
);

/** Create a canvas of image k, which is drawn when it comes close to the viewport. */
export function canvasOf(k, side, plain = false) {
  const entry = DATA.images[k],
    scale = side / Math.max(entry.w, entry.h);
  const size = entry.image ? [entry.w * scale, entry.h * scale].map(Math.round) : [side, side];
  const canvas = make("canvas", { width: size[0], height: size[1], "aria-hidden": "true", "data-photo": k });
  if (entry.map !== undefined) canvas.dataset.map = entry.map;
  if (plain) canvas.dataset.plain = "";
  seen.observe(canvas);
  return canvas;
}

/** Draw every canvas now, since a browser does not wait before it prints. */
export function drawAll() {
  for (const canvas of $$("canvas:is([data-map], [data-photo]):not([data-drawn])")) {
    seen.unobserve(canvas);
    paintNow(canvas);
  }
}

for (const canvas of $$("canvas:is([data-map], [data-photo]):not([aria-hidden])")) seen.observe(canvas);
addEventListener("beforeprint", drawAll);
// All images are loaded early, so that they can be printed. This makes no requests, because the page contains them.
Promise.all(DATA.images.map((_, k) => photo(k))).then(() => {
  document.documentElement.dataset.ready = "";
});
