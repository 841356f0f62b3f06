// The most likely classes as bars next to the map, or the objects detected in an image.
import { CLASS_COLORS } from "../drawing/objects.js";
import { loadImage } from "../drawing/surface.js";
import { createSlot, drawSlots, refuseSlots } from "./small_map.js";
import { TrueClass } from "./true_class.js";
import { scoreOf, topClasses } from "./scores.js";
import { whenAnswered } from "../parts.js";
import { state, subscribe, update } from "../store.js";
import { showText } from "../shared/elements.js";
import { fill, formatShare, make } from "../wire.js";

const SMALL = 3, // number of classes with a small map next to their bar
  MORE = 20; // number of classes that are listed on demand

function createBar(item, { title, chosen, mapped, choose }) {
  const name = make("span", { class: "hl-name", text: item.name });
  if (item.color !== undefined)
    name.prepend(make("i", { class: "hl-swatch", style: `background:${CLASS_COLORS[item.color]}` }));
  const fill = make("i", { class: "hl-fill" });
  fill.style.width = `${100 * item.share}%`;
  return make(
    "button",
    { "aria-pressed": String(chosen), "data-index": item.index, title, onclick: choose },
    ...(mapped ? [createSlot(item.index)] : []),
    name,
    make("span", { class: "hl-share", text: item.text ?? formatShare(item.share) }),
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

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const { terms } = props,
    root = make("div", { class: "hl-bars", role: "group" }),
    title = make("h2", { class: "hl-title", text: terms.title }),
    about = make("p", { class: "hl-quiet hl-small-about", hidden: true });
  const toggle = make("button", { class: "hl-link hl-bars-more", hidden: true }),
    trueClass = new TrueClass(terms, (target) => trigger("change", { target }));
  element.firstElementChild.append(title, root, make("div", { class: "hl-bars-below" }, toggle, trueClass.root), about);
  let long = false;
  const showMaps = followMaps(root, props);
  const draw = () => {
    const value = props.value || { items: [] },
      { maps } = value;
    const at = [...root.children].indexOf(document.activeElement);
    title.textContent = value.title || terms.title;
    root.setAttribute("aria-label", value.title || terms.group);
    root.classList.toggle("hl-with-maps", Boolean(maps));
    showText(about, maps ? maps.text : "");
    root.replaceChildren(
      ...listed(value).map((item, k) =>
        createBar(item, {
          title: terms.explain.replace("{name}", () => item.name),
          chosen: item.index === value.chosen,
          mapped: Boolean(maps) && k < SMALL,
          choose: () => trigger("change", { target: item.name }),
        }),
      ),
    );
    if (at >= 0 && root.children[at]) root.children[at].focus({ preventScroll: true });
    toggle.hidden = !value.all || value.all.w <= value.items.length || !state.classes.length;
    toggle.textContent = long
      ? fill(terms.less, { count: value.items.length })
      : fill(terms.more, { count: Math.min(MORE, value.all?.w) });
    trueClass.show(value.all ? scoreOf(value) : null);
    update({ likely: value.all && state.classes.length ? topClasses(scoreOf(value), state.classes, MORE) : [] });
    showMaps();
  };
  /** Return the listed classes; more than the server has listed come from the scores of all classes. */
  const listed = (value) => (long && value.all ? topClasses(scoreOf(value), state.classes, MORE) : value.items);
  toggle.addEventListener("click", () => {
    long = !long;
    draw();
  });
  subscribe(["classes"], draw);
  whenAnswered(element, () => {
    const { id, key, items = [], maps } = props.value || {};
    const classes = maps ? items.map(({ index }) => index) : [];
    if (classes.length) trigger("answered", { id, key, classes, method: maps.method });
  });
  return draw;
}
