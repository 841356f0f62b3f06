// The current settings as code to copy.
import { copyButton } from "../shared/copy.js";
import { fill, make } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, { terms }) {
  const draw = (item) => {
    const code = item.code.replaceAll("{origin}", new URL(".", document.baseURI).href);
    const copy = copyButton(terms, () => code, { "aria-label": fill(terms.copy_named, { name: item.title }) });
    return make(
      "section",
      {},
      make("h2", { text: item.title }),
      make("p", { text: item.text }),
      make("div", { class: "hl-code" }, make("pre", { tabindex: 0 }, make("code", { text: code })), copy),
    );
  };
  return (value) => element.firstElementChild.replaceChildren(...(value?.items || []).map(draw));
}
