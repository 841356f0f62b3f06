// Grad-CAM at every stage of the network, first to last; a click selects that layer.
import { field } from "./field.js";
import { draw, view } from "./paint.js";
import { follow, make, painted } from "./wire.js";

const SIDE = 96 * Math.min(3, Math.ceil(window.devicePixelRatio || 1));

function thumbnail(canvas, image, packed) {
  const high = Math.max(1, Math.round(image && image.naturalWidth ? (SIDE * image.naturalHeight) / image.naturalWidth : SIDE));
  canvas.height = high;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#808080";
  context.fillRect(0, 0, SIDE, high);
  if (image) context.drawImage(image, 0, 0, SIDE, high);
  const pixels = context.getImageData(0, 0, SIDE, high);
  draw(pixels.data, SIDE, high, view(field(packed)));
  context.putImageData(pixels, 0, 0);
}

export function mount(element, props, trigger, watch) {
  const host = element.firstElementChild;
  const title = make("h3", { class: "hl-title", text: props.title, hidden: true });
  const root = make("div", { class: "hl-stages" });
  host.append(title, root);
  root.setAttribute("role", "radiogroup");
  root.setAttribute("aria-label", "Layer: all stages of the network");
  const choose = (button) => {
    for (const other of root.children) {
      other.setAttribute("aria-checked", String(other === button));
      other.tabIndex = other === button ? 0 : -1;
    }
    button.focus({ preventScroll: true });
    trigger("select", { layer: button.dataset.layer });
  };
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const at = [...root.children].indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    choose(root.children[(at + step + root.children.length) % root.children.length]);
  });
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value || { stages: [] };
    const focused = root.contains(document.activeElement);
    const image = value.crop ? new Image() : null;
    root.replaceChildren(...value.stages.map((stage) => {
      const canvas = make("canvas", { width: SIDE, height: SIDE, "aria-hidden": "true" });
      const draw = () => thumbnail(canvas, image, stage.map);
      if (image) image.addEventListener("load", draw);
      else draw();
      const chosen = stage.layer === value.chosen;
      return make("button", { type: "button", role: "radio", "aria-checked": String(chosen), "data-layer": stage.layer,
        tabindex: chosen || (!value.stages.some((s) => s.layer === value.chosen) && stage === value.stages[0]) ? 0 : -1,
        onclick: (event) => choose(event.currentTarget) },
        canvas, make("code", { text: stage.layer }), make("span", { text: stage.grid }));
    }));
    title.hidden = !value.stages.length;
    if (image) image.src = value.crop.src;
    if (focused) root.querySelector("[aria-checked=true]")?.focus({ preventScroll: true });
    painted(element, value.id, since);
  });
}
