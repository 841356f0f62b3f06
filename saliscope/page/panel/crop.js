// Selects the part of the image that the network receives: the center, the whole image, or a position of the frame.
// It belongs to the preprocessing, so a change selects the model "NAME?crop=...".
import { frameCrop } from "./crop_frame.js";
import { explainButton } from "../text/terms.js";
import { make } from "../wire.js";

const CENTER = [0.5, 0.5];

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const { terms } = props;
  const use = (crop) => {
    const { base, others } = props.value,
      settings = [...others, ...(crop ? [`crop=${crop}`] : [])];
    trigger("change", { model: settings.length ? `${base}?${settings.join("&")}` : base });
  };
  const button = (text, crop, more = {}) => make("button", { text, onclick: () => use(crop), ...more });
  const center = button(terms.center, ""),
    whole = button(terms.whole, "whole", { title: terms.whole_hint });
  explainButton(center, terms.word);
  const attributes = { class: "hl-segments", role: "group", "aria-label": terms.group, hidden: true };
  const root = make("div", attributes, center, whole);
  element.firstElementChild.append(root);
  frameCrop("hl-image", terms.frame, (position) => {
    if (props.value?.base) use(position.map((share) => String(Math.round(100 * share) / 100)).join(","));
  });
  return (value) => {
    const { base, position } = value || {};
    root.hidden = !base;
    if (!base) return;
    center.setAttribute("aria-pressed", String(String(position) === String(CENTER)));
    whole.setAttribute("aria-pressed", String(position === null));
  };
}
