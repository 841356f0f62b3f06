// What an index knows about the open channel: its name with the test, a synthetic image, crops of photos, and similar
// channels.
import { formatStatistic } from "./order.js";
import { labelUnit } from "./names.js";
import { open } from "./state.js";
import { state } from "../store.js";
import { explain } from "../text/terms.js";
import { placeOf } from "../shared/elements.js";
import { fill, make, makeButton } from "../wire.js";

let by = 0; // the chosen order of the photos, for all channels

const makeSection = (title, ...content) => make("section", {}, make("h3", { text: title }), ...content);

/** Draw the place of a crop in its photo as a small square. */
function drawPlace({ box: [left, top, right, bottom] }) {
  if (right - left > 0.99 && bottom - top > 0.99) return [];
  return [make("span", { "aria-hidden": "true" }, make("i", { style: placeOf([left, top, right, bottom]) }))];
}

/** The photos of a channel: their crops, and the photo of the chosen one with the box of its crop. */
class Photos {
  constructor({ crops, photos, by: names }, terms) {
    this.crops = crops;
    this.photos = photos;
    this.terms = terms;
    this.list = make("ol", { class: "hl-unit-crops" });
    this.photo = make("div", { class: "hl-unit-photo" });
    this.note = make("p", { class: "hl-quiet", text: photos.length ? terms.photo_note : terms.crops_note });
    this.orders = names.map((name, k) => makeButton(name, () => this.draw(k)));
    const orders = make("div", { class: "hl-unit-orders", role: "group", "aria-label": terms.order }, ...this.orders);
    orders.hidden = names.length < 2;
    const large = make("div", { class: "hl-unit-large" }, this.photo, this.note);
    this.root = makeSection(terms.crops, orders, large, this.list);
    this.draw(by);
  }

  /** Draw the crops in one of the orders. */
  draw(order) {
    if (order < this.crops.length) by = order;
    this.shown = this.crops[order] || this.crops[0];
    this.orders.forEach((button, k) => button.setAttribute("aria-pressed", String(this.crops[k] === this.shown)));
    this.list.replaceChildren(...this.shown.map((crop, k) => this.drawCrop(crop, k)));
    this.show(0);
  }

  drawCrop(crop, k) {
    const { src, value, label, photo } = crop,
      number = formatStatistic(value),
      alt = fill(this.terms.crop, { rank: k + 1, label: label && `: ${label}`, value: number });
    const image = make("div", { class: "hl-unit-crop" }, make("img", { src, alt, width: 72, height: 72 })),
      caption = make("span", { "aria-hidden": "true" }, make("b", { text: number }), ` ${label}`);
    if (photo === null) {
      image.append(...drawPlace(crop));
      return make("li", { title: alt }, image, caption);
    }
    const show = () => this.show(k);
    const button = make("button", { onclick: show, onpointerenter: show, onfocus: show }, image, caption);
    return make("li", { title: alt }, button);
  }

  /** Show the photo of a crop with its box. */
  show(k) {
    const crop = this.shown[k],
      src = this.photos[crop.photo];
    this.photo.hidden = !src;
    if (!src) return;
    const alt = fill(this.terms.photo, { rank: k + 1 });
    this.photo.replaceChildren(
      make("div", {}, make("img", { src, alt }), make("i", { style: placeOf(crop.box), "aria-hidden": "true" })),
    );
    [...this.list.children].forEach((each, at) =>
      each.firstElementChild.setAttribute("aria-pressed", String(at === k)),
    );
  }
}

const drawCrops = (value, terms) => (value.crops.length ? [new Photos(value, terms).root] : []);

function drawSynthetic({ image }, terms) {
  if (!image) return [];
  const drawn = make("img", { src: image, alt: terms.synthetic, width: 96, height: 96 }),
    note = make("p", { class: "hl-quiet", text: terms.synthetic_note });
  const figure = make("div", { class: "hl-unit-synthetic" }, drawn, note);
  return [makeSection(terms.synthetic, figure)];
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
  return [makeSection(terms.nearest, make("div", { class: "hl-unit-nearest" }, ...buttons), note)];
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
export function mount(element, { terms }) {
  const root = element.firstElementChild;
  explain(root);
  return (value) => {
    root.toggleAttribute("hidden", !value?.lines);
    root.replaceChildren(...(value?.lines ? drawUnit(value, terms) : []));
  };
}
