// Findings on a map, or an error of a model: sentences, with a button where there is a remedy.
import { follow, make, painted } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    const items = (props.value && props.value.items) || [];
    root.replaceChildren(...items.map((item) => {
      const row = make("div", { class: "hl-finding" }, make("p", { text: item.sentence }));
      if (item.label) {
        row.append(make("button", { type: "button", class: "hl-button", text: item.label,
          onclick: () => trigger("select", { remedy: item.remedy }) }));
      }
      return row;
    }));
    painted(element, props.value && props.value.id, since);
  });
}
