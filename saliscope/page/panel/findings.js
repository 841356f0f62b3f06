// Findings on a map, or an error of a model: messages, with a button if there is a remedy.
import { make, makeButton } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const draw = (item) => {
    const row = make("div", { class: "hl-finding" }, make("p", { text: item.sentence }));
    if (item.label) {
      row.append(makeButton(item.label, () => trigger("change", { remedy: item.remedy })));
    }
    return row;
  };
  return (value) => element.firstElementChild.replaceChildren(...(value?.items || []).map(draw));
}
