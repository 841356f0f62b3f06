// Why a cell of the open channel fired: its gradient at the pixels over the photograph. A click on the large map asks about
// the cell there, and so does Enter.
import { field } from "../drawing/field.js";
import { view } from "../drawing/paint.js";
import { Surface, picture } from "../drawing/surface.js";
import { walk } from "./walk.js";
import { follow, make, painted } from "../wire.js";

const LARGE = "#hl-channel";

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild, { terms } = props;
  let cell = null, value = null;
  const canvas = make("canvas", { width: 224, height: 224, role: "img" }), line = make("p", { class: "hl-quiet" });
  const mark = make("div", { class: "hl-cell", hidden: true });
  const frame = make("div", { class: "hl-channels-why" }, canvas, mark);
  const surface = new Surface(canvas);
  root.replaceChildren(make("h2", { class: "hl-title", text: terms.why }), frame, line);
  root.hidden = true;

  const ask = () => { if (cell && walk.number !== null) trigger("select", { channel: walk.number, cell }); };
  const inside = (event) => event.target.closest?.(`${LARGE} canvas`);
  document.addEventListener("hl-cell", (event) => {
    if (event.target.closest?.(LARGE)) cell = event.detail && [event.detail.row, event.detail.column];
  });
  document.addEventListener("click", (event) => { if (inside(event)) ask(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Enter" && inside(event)) ask(); });

  const paint = () => {
    surface.fit();
    if (!value.map) return surface.alone();
    surface.paint(view(field(value.map), { signed: false }));
    surface.mix(1);
  };
  new ResizeObserver(() => { if (value?.crop && surface.image) paint(); }).observe(canvas);
  follow(props, watch, ["value"], async () => {
    const since = performance.now(), given = props.value;
    if (!given?.crop) {
      value = given;
      root.hidden = true;
      return painted(element, given?.id, since);
    }
    const image = await picture(given.crop.src);
    if (props.value !== given) return;
    [value, surface.image, root.hidden] = [given, image, false];
    frame.style.aspectRatio = String(1 / surface.ratio);
    paint();
    canvas.setAttribute("aria-label", given.line);
    line.textContent = given.line;
    const [left, top, right, bottom] = given.box.map((part) => 100 * part);
    mark.hidden = false;
    mark.style.cssText = `left:${left}%;top:${top}%;width:${right - left}%;height:${bottom - top}%`;
    painted(element, given.id, since);
  });
}
