// What an index knows about the open channel: its name with the test, a synthetic image, crops of photos, and similar
// channels.
import { formatStatistic } from "./order.js";
import { labelUnit } from "./names.js";
import { open } from "./state.js";
import { state } from "../store.js";
import { explain } from "../text/terms.js";
import { fill, make, makeButton, markDrawn, watchProps } from "../wire.js";

/** Draw a crop, and where it is in the photo unless it is the whole one. */
function drawCrop({ src, box, value, label }, k, terms) {
  const number = formatStatistic(value),
    [left, top, right, bottom] = box.map((part) => 100 * part);
  const alt = fill(terms.crop, { rank: k + 1, label: label && `: ${label}`, value: number });
  const image = make("div", { class: "hl-unit-crop" }, make("img", { src, alt, width: 72, height: 72 }));
  if (right - left < 99 || bottom - top < 99) {
    const place = `left:${left}%;top:${top}%;width:${right - left}%;height:${bottom - top}%`;
    image.append(make("span", { "aria-hidden": "true" }, make("i", { style: place })));
  }
  const caption = make("span", { "aria-hidden": "true" }, make("b", { text: number }), ` ${label}`);
  return make("li", { title: alt }, image, caption);
}

function drawCrops({ crops }, terms) {
  if (!crops.length) return [];
  const list = make("ol", { class: "hl-unit-crops" }, ...crops.map((crop, k) => drawCrop(crop, k, terms)));
  return [
    make(
      "section",
      {},
      make("h3", { text: terms.crops }),
      list,
      make("p", { class: "hl-quiet", text: terms.crops_note }),
    ),
  ];
}

function drawSynthetic({ image }, terms) {
  if (!image) return [];
  const drawn = make("img", { src: image, alt: terms.synthetic, width: 96, height: 96 }),
    note = make("p", { class: "hl-quiet", text: terms.synthetic_note });
  const figure = make("div", { class: "hl-unit-synthetic" }, drawn, note);
  return [make("section", {}, make("h3", { text: terms.synthetic }), figure)];
}

function drawNearest({ nearest }, terms) {
  if (!nearest.length) return [];
  const { sheet } = state.channels,
    note = make("p", { class: "hl-quiet", text: terms.nearest_note });
  const buttons = nearest.map((number) => {
    const { name, test } = labelUnit(sheet, number);
    const button = makeButton(`${number} ${name}`.trim(), () => open(number), { title: test && `${name}, ${test}` });
    if (test) button.append(make("span", { class: "hl-spoken", text: `, ${test}` }));
    return button;
  });
  return [
    make(
      "section",
      {},
      make("h3", { text: terms.nearest }),
      make("div", { class: "hl-unit-nearest" }, ...buttons),
      note,
    ),
  ];
}

function drawUnit(value, terms) {
  return [
    make("h2", { class: "hl-title", text: terms.title }),
    ...value.lines.map((text) => make("p", { text })),
    ...drawSynthetic(value, terms),
    ...drawCrops(value, terms),
    ...drawNearest(value, terms),
  ];
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild,
    { terms } = props;
  explain(root);
  watchProps(watch, ["value"], () => {
    const since = performance.now(),
      { value } = props;
    root.toggleAttribute("hidden", !value?.lines);
    root.replaceChildren(...(value?.lines ? drawUnit(value, terms) : []));
    markDrawn(element, value?.id, since);
  });
}
