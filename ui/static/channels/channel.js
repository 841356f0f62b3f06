// Which channel is open: Previous and Next in the order of the tiles, or any number.
import { beside, listen, old, open, update, walk } from "./walk.js";
import { follow, make, painted } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild, { terms } = props;
  let shown = null;
  const button = (text, onclick) => make("button", { type: "button", class: "hl-button", text, onclick, disabled: true });
  const go = (step) => { const next = beside(step); if (next !== null && next !== undefined) open(next); };
  const previous = button(terms.previous, () => go(-1)), next = button(terms.next, () => go(1)), close = button("×", () => open(null));
  close.setAttribute("aria-label", terms.close);
  close.title = terms.close;
  const count = make("span"), line = make("p", { class: "hl-quiet", role: "status", text: terms.closed });
  const number = make("input", { type: "number", min: 0, step: 1, name: "channel", disabled: true, "aria-label": terms.channel, onchange: () => {
    const wanted = Math.round(number.valueAsNumber);
    if (Number.isFinite(wanted) && walk.total) open(Math.min(walk.total - 1, Math.max(0, wanted)));
    else number.value = walk.number ?? "";
  } });
  root.replaceChildren(make("div", { class: "hl-pager hl-channels-pager" }, previous, make("label", {}, number, count), next, close), line);

  /** Mark what stands below as a former question's, or as another channel's, until the answer is there. */
  const mark = () => {
    const pane = document.getElementById("hl-channels-pane"), there = walk.total > 0;
    for (const each of [previous, next, number]) each.disabled = !there;
    close.disabled = walk.number === null;
    if (document.activeElement !== number) number.value = walk.number ?? "";
    number.max = Math.max(0, walk.total - 1);
    count.textContent = there ? `${terms.of} ${walk.total.toLocaleString("en")}` : "";
    if (!pane) return;
    const is = shown && shown.number === walk.number && shown.about === walk.about && shown.whom === walk.whom;
    pane.dataset.old = String(walk.number !== null && (old() || !is));
    pane.dataset.channel = walk.number ?? "";
    pane.dataset.open = String(walk.number !== null && Boolean(shown));
    line.hidden = walk.number !== null;
  };
  listen(mark);
  follow(props, watch, ["value"], () => {
    const since = performance.now(), { value } = props;
    if (value && value !== shown) {
      shown = value.number === null ? null : value;
      line.textContent = value.sentence || terms.closed;
      if (value.number === null) update({ number: null });
      mark();
    } else mark();
    painted(element, value?.id, since);
  });
}
