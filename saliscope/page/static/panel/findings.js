// Findings on a map, or an error of a model: messages, with a button if there is a remedy.
import { drawList, make } from "../wire.js";

export function mount(element, props, trigger, watch) {
  drawList(element, props, watch, (item) => {
    const row = make("div", { class: "hl-finding" }, make("p", { text: item.sentence }));
    if (item.label) {
      row.append(
        make("button", {
          type: "button",
          class: "hl-button",
          text: item.label,
          onclick: () => trigger("select", { remedy: item.remedy }),
        }),
      );
    }
    return row;
  });
}
