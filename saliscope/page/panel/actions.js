// The buttons below the settings: explain, stop, and copy the link, with a field to copy it by hand.
import { askQuestion } from "../parts.js";
import { copyLink, currentLink, onAddress, recordChoice } from "../shared/address.js";
import { state, subscribe, update } from "../store.js";
import { make, makeButton } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, { terms }, trigger) {
  const button = (id, text, onclick, more = {}) => makeButton(text, onclick, { id, ...more });
  const explain = button("hl-explain", terms.explain, () => {
    recordChoice();
    update({ explained: state.explained + 1 });
    askQuestion({ again: true });
  });
  explain.classList.add("hl-primary");
  const stop = button("hl-stop", terms.stop, () => trigger("stop"), { disabled: true });
  const linked = make("div", { id: "hl-linked" });
  let shown = "";
  /** Keep the link below the buttons up to date, and say so if it is no longer the copied one. */
  const follow = () => {
    const field = linked.querySelector("input");
    if (!field) return;
    const { address } = currentLink();
    if (address === shown) return;
    shown = field.value = address;
    linked.firstChild.textContent = terms.copy;
  };
  onAddress(() => queueMicrotask(follow));
  const link = button("hl-link", terms.copy_link, async () => {
    const { address, text } = await copyLink(terms);
    shown = address;
    const field = make("input", {
      type: "text",
      readonly: true,
      value: address,
      "aria-label": terms.field,
      onfocus: (event) => event.target.select(),
    });
    linked.replaceChildren(make("p", { class: "hl-quiet", role: "status", text }), field);
  });
  element.firstElementChild.replaceChildren(make("div", { class: "hl-row" }, explain, stop, link), linked);
  subscribe(["phase"], () => {
    stop.disabled = state.phase !== "busy";
  });
}
