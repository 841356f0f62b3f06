// The link, in a field to copy from by hand where the clipboard is not available.
import { follow, make } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  follow(props, watch, ["value"], () => {
    const value = props.value;
    if (!value || !value.link) return root.replaceChildren();
    const field = make("input", { type: "text", readonly: true, value: value.link, "aria-label": "Link to these settings",
      onfocus: (event) => event.target.select() });
    root.replaceChildren(make("p", { class: "hl-quiet", role: "status", text: value.text }), field);
  });
}
