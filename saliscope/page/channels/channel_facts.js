// Statistics of the open channel, its contribution to the class score, and the receptive field of the cell under the
// pointer.
import { change, state, subscribe } from "../store.js";
import { explain } from "../text/terms.js";
import { makeFacts } from "../shared/elements.js";
import { fill, make, makeButton } from "../wire.js";

const LARGE = "hl-channel"; // the part with the large map

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const root = element.firstElementChild,
    { terms } = props;
  let value = null;
  const facts = make("dl", { class: "hl-facts" }),
    fieldText = make("dd"),
    field = make("dt", { text: terms.field });
  const title = make("h2", { class: "hl-title" }),
    lines = make("div", { class: "hl-channels-lines" });
  const select = () => trigger("change", { target: value.target }),
    use = makeButton(terms.target, select, { title: terms.target_title });
  root.replaceChildren(facts, use, title, lines); // the lines arrive last
  explain(root);

  /** Draw a box around the input pixels that affect the cell; without a pointer, use the strongest cell. */
  const place = () => {
    const spans = value?.fields,
      cell = state.cells[LARGE];
    const [row, column] = cell ? [cell.row, cell.column] : value?.peak || [];
    const [top, bottom] = spans?.rows?.[row] || [0, 0],
      [left, right] = spans?.columns?.[column] || [0, 0];
    const visible = value?.number === state.channels.number && bottom > top && right > left;
    change("fields", { [LARGE]: visible ? [left, top, right, bottom] : null });
    const [across, down] = value?.fields?.size || [0, 0];
    if (spans && !spans.rows) fieldText.textContent = spans.line;
    else if (!spans) fieldText.textContent = terms.waiting;
    else {
      const size = `${Math.round((right - left) * across)} × ${Math.round((bottom - top) * down)} px`,
        whole = left <= 0 && top <= 0 && right >= 1 && bottom >= 1;
      fieldText.textContent = !visible ? terms.no_field : whole ? fill(terms.whole_field, { size }) : size;
    }
  };
  /** The button is about the open channel, whose facts may not be here yet. */
  const allow = () => {
    use.disabled = Boolean(value?.explained) || value?.number !== state.channels.number;
  };
  subscribe(["cells"], place);
  subscribe(["channels"], allow);
  return (given) => {
    value = given?.facts ? given : null;
    root.toggleAttribute("hidden", !value);
    if (value) {
      facts.replaceChildren(...makeFacts(value.facts), field, fieldText);
      use.hidden = !value.target;
      allow();
      use.textContent = value.explained ? terms.explained : terms.target;
      title.textContent = value.share ? value.share.title : terms.share;
      lines.replaceChildren(...(value.share ? value.share.lines : [terms.waiting]).map((text) => make("p", { text })));
    }
    place();
  };
}
