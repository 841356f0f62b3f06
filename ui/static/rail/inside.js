// The layers inside the block of the chosen one, opened on demand.
import { heights } from "./parts.js";
import { make } from "../wire.js";

/** {root, draw(network), show(block, layer, norms)}; `choose(layer)` and `say(layer or nothing)` are the rail's. */
export function inside(terms, choose, say) {
  const summary = make("summary", {}), list = make("div", { class: "hl-rail-inside", role: "radiogroup" });
  const root = make("details", { hidden: true }, summary, list);
  let network = null, shown = -1, buttons = [], last = null;

  const fill = (at) => {
    const block = network.blocks[at], [around] = network.layers[block.out];
    shown = at;
    root.hidden = block.count < 2;
    summary.textContent = terms.inside.replace("{name}", around).replace("{count}", block.count);
    list.setAttribute("aria-label", terms.inside_group.replace("{name}", around));
    list.replaceChildren();
    buttons = [];
    if (!root.open) return;
    const layers = network.layers.slice(block.first, block.first + block.count);
    const parts = layers.map(([name]) => name.split("."));
    let common = 0;
    while (parts.length > 1 && parts.every((each) => each.length > common + 1 && each[common] === parts[0][common])) common++;
    const label = (name, k) => {
      if (name === around) return name;
      return name.startsWith(`${around}.`) ? name.slice(around.length + 1) : parts[k].slice(common).join(".");
    };
    buttons = layers.map(([name, , , , kind, , reason, can], k) =>
      make("button", { type: "button", role: "radio", "data-layer": name, "data-why": reason, "aria-disabled": can ? null : "true",
        onclick: () => choose(block.first + k), onpointerenter: () => say(block.first + k), onpointerleave: () => say(),
        onfocus: () => say(block.first + k), onblur: () => say() },
        make("span", { class: "hl-rail-step" }, make("i", {})), make("code", { text: label(name, k) }),
        make("span", { text: kind })));
    list.replaceChildren(...buttons);
  };

  const show = (at, layer, norms) => {
    if (!network || at < 0) return;
    last = [at, layer, norms];
    const focus = list.contains(document.activeElement);
    if (at !== shown) fill(at);
    const block = network.blocks[at];
    const high = norms ? heights(norms.norms.slice(block.first, block.first + block.count)) : [];
    buttons.forEach((button, k) => {
      const chosen = block.first + k === layer, [name, height, width, channels, , why] = network.layers[block.first + k];
      const norm = norms?.norms[block.first + k];
      button.setAttribute("aria-checked", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      button.querySelector("i").style.height = `${100 * (high[k] ?? 0.12)}%`;
      button.dataset.norm = high[k] === 0 ? "none" : high[k] ? "known" : "unknown";
      const size = height ? `, ${height} × ${width}, ${terms.channels.replace("{count}", channels)}` : "";
      const gradient = norm === undefined || norm === null ? "" : `, ${terms.norm.replace("{norm}", norm).replace("{name}", norms.name)}`;
      button.setAttribute("aria-label", `${name}${size}${gradient}${why ? `. ${why}` : ""}`);
    });
    if (!buttons.some((button) => button.tabIndex === 0) && buttons.length) buttons[0].tabIndex = 0;
    if (focus) list.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  };

  root.addEventListener("toggle", () => {
    shown = -1;
    if (last) show(...last);
  });
  list.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement), end = buttons.length - 1;
    const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: end }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(end, to));
    buttons[next].focus({ preventScroll: true });
    choose(network.blocks[shown].first + next, 180);
  });
  return { root, show, draw: (drawn) => { network = drawn; shown = -1; last = null; } };
}
