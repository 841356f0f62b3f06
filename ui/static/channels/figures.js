// Figures of the open channel, its share of the class, and the receptive field of the cell under the pointer.
import { walk } from "./walk.js";
import { follow, make, painted } from "../wire.js";

const LARGE = "#hl-channel";

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild, { terms } = props;
  let value = null, cell = null;
  const facts = make("dl", { class: "hl-facts" }), said = make("dd"), field = make("dt", { text: terms.field });
  const title = make("h2", { class: "hl-title" }), lines = make("div", { class: "hl-channels-lines" });
  const box = make("div", { class: "hl-field", hidden: true });
  const use = make("button", { type: "button", class: "hl-button", text: terms.target, title: terms.target_title, onclick: () => trigger("select", { target: value.target }) });
  root.replaceChildren(facts, title, lines, use);

  /** Draw the box of the input's pixels that the cell can depend on; without a pointer that of the strongest cell. */
  const place = () => {
    const frame = document.querySelector(`${LARGE} .hl-frame`), spans = value?.fields, [row, column] = cell || value?.peak || [];
    if (frame && box.parentElement !== frame) frame.append(box);
    const [top, bottom] = spans?.rows?.[row] || [0, 0], [left, right] = spans?.columns?.[column] || [0, 0];
    const seen = value?.number === walk.number && bottom > top && right > left;
    box.hidden = !seen;
    if (seen) box.style.cssText = `left:${100 * left}%;top:${100 * top}%;width:${100 * (right - left)}%;height:${100 * (bottom - top)}%`;
    const [across, down] = value?.fields?.size || [0, 0];
    if (spans && !spans.rows) said.textContent = spans.line;
    else if (!spans) said.textContent = terms.waiting;
    else said.textContent = seen ? `${Math.round((right - left) * across)} × ${Math.round((bottom - top) * down)} px` : terms.no_field;
  };
  document.addEventListener("hl-cell", (event) => {
    if (!event.target.closest?.(LARGE)) return;
    cell = event.detail && [event.detail.row, event.detail.column];
    place();
  });
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    value = props.value?.facts ? props.value : null;
    root.hidden = !value;
    if (value) {
      facts.replaceChildren(...value.facts.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]), field, said);
      [use.hidden, use.disabled] = [!value.target, Boolean(value.explained)];
      use.textContent = value.explained ? terms.explained : terms.target;
      title.textContent = value.share ? value.share.title : terms.share;
      lines.replaceChildren(...(value.share ? value.share.lines : [terms.waiting]).map((text) => make("p", { text })));
    }
    place();
    painted(element, props.value?.id, since);
  });
}
