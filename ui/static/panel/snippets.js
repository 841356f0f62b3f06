// The current settings as calls that can be copied.
import { listed, make } from "../wire.js";

export function mount(element, props, trigger, watch) {
  listed(element, props, watch, (item) => {
    const code = item.code.replaceAll("{origin}", new URL(".", document.baseURI).href);
    const copy = make("button", { type: "button", class: "hl-button", text: "Copy", onclick: async () => {
      try { await navigator.clipboard.writeText(code); copy.textContent = "Copied"; } catch { copy.textContent = "Select and copy by hand"; }
      setTimeout(() => { copy.textContent = "Copy"; }, 2000);
    } });
    return make("section", {}, make("h2", { text: item.title }), make("p", { text: item.text }),
      make("div", { class: "hl-code" }, make("pre", { tabindex: 0 }, make("code", { text: code })), copy));
  });
}
