// The maps of the most likely classes, small, beside their bars. classes.js makes the places; they are filled here.
import { field } from "../drawing/field.js";
import { draw, view } from "../drawing/paint.js";
import { picture } from "../drawing/surface.js";
import { follow, make, painted } from "../wire.js";

const SIDE = 44;                                         // CSS pixels of the longer side
let shown = null, photo = null;

/** The place of a class's map, filled as soon as there is one. */
export function place(index) {
  return make("canvas", { class: "hl-small", width: 1, height: 1, "data-small": index, "aria-hidden": "true" });
}

/** Fill the places in `root`, which lists the classes of answer `id`. */
export function fill(root, id) {
  root.dataset.of = id;
  for (const canvas of root.querySelectorAll("canvas[data-small]")) {
    const item = shown && shown.of === id && shown.items.find((each) => String(each.index) === canvas.dataset.small);
    if (item && canvas.dataset.drawn !== String(id)) paint(canvas, item.map, id);
  }
}

function paint(canvas, packed, id) {
  const tall = photo ? photo.naturalHeight / photo.naturalWidth : 1, side = SIDE * Math.min(3, window.devicePixelRatio || 1);
  [canvas.width, canvas.height] = [side * Math.min(1, 1 / tall), side * Math.min(1, tall)].map((each) => Math.max(1, Math.round(each)));
  const context = canvas.getContext("2d", { willReadFrequently: true }), { width, height } = canvas;
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#808080";
  context.fillRect(0, 0, width, height);
  if (photo) context.drawImage(photo, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height);
  draw(pixels.data, width, height, { ...view(field(packed)), lines: false });      // they would fill it
  context.putImageData(pixels, 0, 0);
  canvas.dataset.drawn = id;
}

export function mount(element, props, trigger, watch) {
  follow(props, watch, ["value"], async () => {
    const since = performance.now(), { value } = props;
    const image = value && value.crop ? await picture(value.crop.src) : null;
    if (value !== props.value) return;                   // a newer one came meanwhile
    if (!value || value.items) [shown, photo] = [value, image];
    for (const root of document.querySelectorAll("[data-of]")) {
      if (value && value.items) fill(root, Number(root.dataset.of));
      else for (const canvas of root.querySelectorAll("canvas[data-small]:not([data-drawn])")) canvas.dataset.drawn = "none";      // refused
    }
    painted(element, value && value.id, since);
  });
}
