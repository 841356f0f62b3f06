// Selects the bands of an image for red, green and blue.
import { recordChoice } from "../shared/address.js";
import { makeLabel, showText } from "../shared/elements.js";
import { fill, make } from "../wire.js";

const COLORS = ["red", "green", "blue"];
/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const root = element.firstElementChild;
  const { terms } = props;
  let value = null;
  const selects = COLORS.map((name) =>
    make("select", {
      name,
      onchange: () => {
        const three = selects.map((each) => Number(each.value));
        props.value = { ...value, three, text: `${three.join(",")} of ${value.count}` };
        recordChoice();
        trigger("change", {});
      },
    }),
  );
  const group = make(
    "div",
    { class: "hl-three", role: "group", "aria-label": terms.title },
    ...selects.map((each, k) => makeLabel(terms[COLORS[k]], each)),
  );
  const use = make("p", { class: "hl-quiet" }),
    about = make("p", { class: "hl-quiet" });
  const box = make("div", { class: "hl-picker", hidden: true }, group, use, about);
  root.replaceChildren(box);
  return (given) => {
    value = given;
    box.hidden = !value || !value.count;
    if (!box.hidden) {
      group.hidden = value.count < 2;
      selects.forEach((select, k) => {
        if (select.options.length !== value.count) {
          select.replaceChildren(
            ...Array.from({ length: value.count }, (_, i) =>
              make("option", { value: i + 1, text: fill(terms.band, { number: i + 1 }) }),
            ),
          );
        }
        select.value = value.three[k];
      });
      showText(use, value.use);
      about.textContent = value.about;
    }
  };
}
