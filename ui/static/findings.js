// Sentences, with a button each where there is a remedy: what was noticed on a map, or what went wrong with a model.
import { follow, make, painted } from "./wire.js";

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
