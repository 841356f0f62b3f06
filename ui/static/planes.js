// The pager below a map that is one of several planes: channels, components, heads. The server draws each.
import { follow, make, painted } from "./wire.js";

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  let value = null;
  const go = (plane) => {
    if (value && Number.isInteger(plane)) trigger("select", { plane: (plane + value.count) % value.count });
  };
  const button = (step) => make("button", { type: "button", class: "hl-button", onclick: () => go(value.plane + step) });
  const [previous, next] = [button(-1), button(1)];
  const word = make("span"), count = make("span");
  const number = make("input", { type: "number", step: 1, name: "plane", onchange: () => {
    const wanted = Math.min(value.count - 1, Math.max(0, Math.round(number.valueAsNumber) - value.words.first));
    if (Number.isFinite(wanted)) go(wanted);
    else number.value = value.plane + value.words.first;
  } });
  const label = make("label", {}, word, number, count);
  const bar = make("div", { class: "hl-pager hl-tools", hidden: true }, previous, label, next);
  root.replaceChildren(bar);
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    value = props.value;
    bar.hidden = !value;
    if (value) {
      [word.textContent, count.textContent] = [value.words.word, value.words.count];
      [previous.textContent, next.textContent] = [value.words.previous, value.words.next];
      number.value = value.plane + value.words.first;
      number.min = value.words.first;
      number.max = value.count - 1 + value.words.first;
    }
    painted(element, value && value.id, since);
  });
}
