// The current settings as code to copy.
import { drawList, fill, make } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const { terms } = props;
  drawList(element, props, watch, (item) => {
    const code = item.code.replaceAll("{origin}", new URL(".", document.baseURI).href);
    const copy = make("button", {
      type: "button",
      class: "hl-button",
      text: terms.copy,
      "aria-label": fill(terms.copy_named, { name: item.title }),
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(code);
          copy.textContent = terms.copied;
        } catch {
          copy.textContent = terms.failed;
        }
        setTimeout(() => {
          copy.textContent = terms.copy;
        }, 2000);
      },
    });
    return make(
      "section",
      {},
      make("h2", { text: item.title }),
      make("p", { text: item.text }),
      make("div", { class: "hl-code" }, make("pre", { tabindex: 0 }, make("code", { text: code })), copy),
    );
  });
}
