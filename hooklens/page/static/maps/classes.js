// The most likely classes as bars next to the map, or the objects detected in an image.
import { CLASS_COLORS } from "../drawing/objects.js";
import { loadImage } from "../drawing/surface.js";
import { createSlot, drawSlots, refuseSlots } from "./small_map.js";
import { whenAnswered } from "../gradio.js";
import { state, subscribe } from "../store.js";
import { watchProps, make, markDrawn } from "../wire.js";

const SMALL = 3; // number of classes with a small map next to their bar

function percent(share) {
  return share >= 0.9995
    ? "100%"
    : share >= 0.1
      ? `${(100 * share).toFixed(0)}%`
      : share >= 0.001
        ? `${(100 * share).toFixed(1)}%`
        : "<0.1%";
}

function createBar(item, { title, chosen, mapped, choose }) {
  const name = make("span", { class: "hl-name", text: item.name });
  if (item.colour !== undefined)
    name.prepend(make("i", { class: "hl-swatch", style: `background:${CLASS_COLORS[item.colour]}` }));
  const fill = make("i", { class: "hl-fill" });
  fill.style.width = `${100 * item.share}%`;
  return make(
    "button",
    { type: "button", "aria-pressed": String(chosen), "data-index": item.index, title, onclick: choose },
    ...(mapped ? [createSlot(item.index)] : []),
    name,
    make("span", { class: "hl-share", text: item.text ?? percent(item.share) }),
    make("span", { class: "hl-track" }, fill),
  );
}

/** Keep the small maps of the listed classes drawn; returns a function to call after the bars were replaced. */
function followMaps(root, props) {
  let maps = null,
    image = null;
  const show = () => {
    if (props.value?.maps) drawSlots(root, props.value.id, maps, image);
  };
  subscribe(["smallMaps"], async () => {
    const { smallMaps } = state,
      found = smallMaps.crop ? await loadImage(smallMaps.crop.src) : null;
    if (smallMaps !== state.smallMaps) return; // newer maps arrived in the meantime
    if (!smallMaps.items) return refuseSlots(root);
    [maps, image] = [smallMaps, found];
    show();
  });
  return show;
}

export function mount(element, props, trigger, watch) {
  const { terms } = props,
    root = make("div", { class: "hl-bars", role: "group" }),
    title = make("h2", { class: "hl-title", text: terms.title }),
    about = make("p", { class: "hl-quiet hl-small-about", hidden: true });
  element.firstElementChild.append(title, root, about);
  const showMaps = followMaps(root, props);
  watchProps(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value || { items: [] },
      { maps } = value;
    const at = [...root.children].indexOf(document.activeElement);
    title.textContent = value.title || terms.title;
    root.setAttribute("aria-label", value.title || terms.group);
    root.classList.toggle("hl-with-maps", Boolean(maps));
    about.hidden = !maps;
    about.textContent = maps ? maps.text : "";
    root.replaceChildren(
      ...value.items.map((item, k) =>
        createBar(item, {
          title: terms.explain.replace("{name}", () => item.name),
          chosen: item.index === value.chosen,
          mapped: Boolean(maps) && k < SMALL,
          choose: () => trigger("select", { target: item.name }),
        }),
      ),
    );
    if (at >= 0 && root.children[at]) root.children[at].focus({ preventScroll: true });
    showMaps();
    markDrawn(element, value.id, since);
  });
  whenAnswered(element, (key) => trigger("answered", { key }));
}
