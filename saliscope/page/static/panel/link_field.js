// Shows the link in a field, to copy by hand if the clipboard is not available.
import { watchProps, make } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  watchProps(props, watch, ["value"], () => {
    const value = props.value;
    if (!value || !value.link) return root.replaceChildren();
    const field = make("input", {
      type: "text",
      readonly: true,
      value: value.link,
      "aria-label": props.terms.field,
      onfocus: (event) => event.target.select(),
    });
    root.replaceChildren(make("p", { class: "hl-quiet", role: "status", text: value.text }), field);
  });
}
