// The five most likely classes: as buttons below the picture, or as bars beside the map.
import { follow, make, painted } from "./wire.js";

function percent(share) {
  return share >= 0.9995 ? "100%" : share >= 0.1 ? `${(100 * share).toFixed(0)}%` : share >= 0.001 ? `${(100 * share).toFixed(1)}%` : "<0.1%";
}

export function mount(element, props, trigger, watch) {
  const host = element.firstElementChild;
  const root = make("div", {});
  if (props.title) host.append(make("h3", { class: "hl-title", text: props.title }));
  host.append(root);
  root.classList.add(props.look === "bars" ? "hl-bars" : "hl-chips");
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Predicted classes");
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value || { items: [] };
    const at = [...root.children].indexOf(document.activeElement);
    root.replaceChildren(...value.items.map((item) => {
      const chosen = item.index === value.chosen;
      const button = make("button", { type: "button", "aria-pressed": String(chosen), "data-index": item.index,
        title: `Explain ${item.name}`, onclick: () => trigger("select", { target: item.name }) },
        make("span", { class: "hl-name", text: item.name }), make("span", { class: "hl-share", text: percent(item.share) }));
      if (props.look === "bars") {
        const fill = make("i", { class: "hl-fill" });
        fill.style.width = `${100 * item.share}%`;
        button.append(make("span", { class: "hl-track" }, fill));
      }
      return button;
    }));
    if (at >= 0 && root.children[at]) root.children[at].focus({ preventScroll: true });
    painted(element, value.id, since);
  });
}
