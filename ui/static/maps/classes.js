// The most likely classes as bars beside the map; or what was found in a picture.
import { COLOURS } from "../drawing/things.js";
import { fill, place } from "./topmaps.js";
import { follow, make, painted } from "../wire.js";

const SMALL = 3;                                         // classes with a small map beside their bar

function percent(share) {
  return share >= 0.9995 ? "100%" : share >= 0.1 ? `${(100 * share).toFixed(0)}%` : share >= 0.001 ? `${(100 * share).toFixed(1)}%` : "<0.1%";
}

export function mount(element, props, trigger, watch) {
  const host = element.firstElementChild;
  const root = make("div", {});
  const title = make("h2", { class: "hl-title", text: props.title, hidden: !props.title });
  host.append(title);
  const about = make("p", { class: "hl-quiet hl-small-about", hidden: true });
  host.append(root, about);
  root.classList.add("hl-bars");
  root.setAttribute("role", "group");
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    const value = props.value || { items: [] };
    const at = [...root.children].indexOf(document.activeElement);
    if (props.title) title.textContent = value.title || props.title;
    root.setAttribute("aria-label", value.title || "Predicted classes");
    const { maps } = value;
    root.classList.toggle("hl-with-maps", Boolean(maps));
    about.hidden = !maps;
    about.textContent = maps ? maps.text : "";
    root.replaceChildren(...value.items.map((item, k) => {
      const chosen = item.index === value.chosen;
      const button = make("button", { type: "button", "aria-pressed": String(chosen), "data-index": item.index,
        title: `Explain ${item.name}`, onclick: () => trigger("select", { target: item.name }) },
        make("span", { class: "hl-name", text: item.name }), make("span", { class: "hl-share", text: percent(item.share) }));
      if (item.colour !== undefined) {
        button.querySelector(".hl-name").prepend(make("i", { class: "hl-swatch", style: `background:${COLOURS[item.colour]}` }));
      }
      const part = make("i", { class: "hl-fill" });
      part.style.width = `${100 * item.share}%`;
      button.append(make("span", { class: "hl-track" }, part));
      if (maps && k < SMALL) button.prepend(place(item.index));
      return button;
    }));
    if (at >= 0 && root.children[at]) root.children[at].focus({ preventScroll: true });
    if (maps) fill(root, value.id);
    painted(element, value.id, since);
  });
}
