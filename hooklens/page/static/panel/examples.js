// Example images as buttons; only the example's id is sent, never a path.
import { update } from "../store.js";
import { watchProps, make } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const root = make("div", { class: "hl-thumbs" }),
    note = make("p", { class: "hl-quiet", hidden: true });
  element.firstElementChild.append(root, note);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", props.terms.group);
  for (const item of props.items || []) {
    root.append(
      make(
        "button",
        {
          type: "button",
          title: item.alt,
          "data-id": item.id,
          onclick: () => {
            props.value = { chosen: item.id };
            mark();
            trigger("select", { example: item.id });
          },
        },
        make("img", { src: item.src, alt: item.alt, width: 56, height: 56 }),
      ),
    );
  }
  function mark() {
    const chosen = props.value && props.value.chosen;
    update({ example: chosen || "" });
    for (const button of root.children) button.setAttribute("aria-pressed", String(button.dataset.id === chosen));
    note.textContent = (props.items || []).find((item) => item.id === chosen)?.note || "";
    note.hidden = !note.textContent;
  }
  watchProps(props, watch, ["value"], mark);
}
