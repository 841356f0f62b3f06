// A selection from a list of names, with search. Its value is a name, and its prop `names` the list.
import { Combobox } from "./combobox.js";
import { state, subscribe, update } from "../store.js";

/**
 * Return the classes with the most likely ones first, and their probabilities. Choices that are not classes stay in
 * front: those whose value does not start with `prefix`, or is empty.
 */
export function likelyFirst(items, prefix = "") {
  const isFixed = ({ value }) => !value || !value.startsWith(prefix),
    listed = new Set(items.map(({ value }) => value));
  const first = state.likely
    .map(({ name, text }) => ({ label: name, value: `${prefix}${name}`, columns: [name, text] }))
    .filter(({ value }) => listed.has(value));
  const likely = new Set(first.map(({ value }) => value));
  const rest = items.filter((item) => !isFixed(item) && !likely.has(item.value));
  return [...items.filter(isFixed), ...first, ...rest];
}

/** Return an item from its message: label, value, columns, and the other fields. */
export const toItem = ([label, value, columns, more]) => ({ label, value, columns, ...more });

class Choice {
  constructor(element, props, chosen) {
    this.props = props;
    this.chosen = chosen;
    this.parsed = "";
    this.list = [];
    this.combobox = new Combobox(
      props.words,
      props.title,
      () => (props.setting === "target" ? likelyFirst(this.items) : this.items),
      (value) => this.select(value),
      {
        heads: props.heads,
        note: () => props.note || "",
        isComplete: () => this.items.length > 1 || Boolean(state.answered) || state.phase === "error",
      },
    );
    element.firstElementChild.replaceChildren(this.combobox.element);
  }

  get items() {
    const { names, top } = this.props;
    if (names !== this.parsed)
      [this.parsed, this.list] = [names, (names.length || !top ? names : [[top, ""]]).map(toItem)];
    return this.list;
  }

  show() {
    const { title, value, aside } = this.props,
      item = this.items.find((each) => each.value === value);
    if (this.props.setting === "target") update({ classes: this.items });
    this.combobox.name(title);
    const isLoading =
      this.props.loading && state.phase === "busy" && state.question && state.question.names.model !== value;
    const label = item && isLoading ? `${item.label.split(" · ")[0]} · ${this.props.loading}` : item?.label;
    const why = state.question?.unused[this.props.setting],
      isEmpty = Boolean(why && !this.items.length);
    this.combobox.set(isEmpty ? this.props.words.none : label || value || "", value, {
      off: isEmpty,
      why,
      aside: why && !isEmpty ? this.props.words.unused : item?.columns?.[aside],
    });
  }

  select(value) {
    this.props.value = value;
    this.show();
    this.chosen(value);
  }
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const choice = new Choice(element, props, (value) => trigger("change", { [props.setting]: value }));
  subscribe(["question", "phase"], () => choice.show());
  return () => {
    choice.show();
    choice.combobox.refresh();
  };
}
