// The method's options as a form; an empty field means "automatic". An invalid number shows a message at its field, and
// the form then requests nothing; the last answer stays, marked as outdated.
import { makeOption } from "../shared/elements.js";
import { fill, make } from "../wire.js";

function control(option, value, terms, changed) {
  const id = `hl-option-${option.name}`;
  const shared = { id, name: option.name, title: option.help || null };
  if (option.kind === "bool") {
    return make("input", {
      ...shared,
      type: "checkbox",
      checked: Boolean(value),
      onchange: (e) => changed(e.target.checked),
    });
  }
  if (option.kind === "choice") {
    const pick = (e) => changed(JSON.parse(e.target.value));
    return make(
      "select",
      { ...shared, onchange: pick },
      ...[...(option.default === null ? [null] : []), ...option.choices].map((choice) =>
        make("option", {
          value: JSON.stringify(choice),
          text: choice === null ? terms.automatic : String(choice).replaceAll("_", " "),
          selected: choice === value,
        }),
      ),
    );
  }
  const whole = option.kind === "int";
  return make("input", {
    ...shared,
    type: "number",
    min: option.low,
    max: option.high,
    step: option.step ?? (whole ? 1 : "any"),
    value: value ?? "",
    placeholder: terms.automatic,
    oninput: (e) => {
      const { value: text, valueAsNumber: number, validity } = e.target;
      if (text === "" && !validity.badInput) return changed(option.default);
      const wrong =
        !Number.isFinite(number) ||
        validity.rangeUnderflow ||
        validity.rangeOverflow ||
        (whole && !Number.isInteger(number));
      const kind = whole ? terms.whole_number : terms.number;
      const message = { kind, range: range(option, terms.at_least, terms.between), text: text || terms.empty };
      changed(number, wrong ? fill(terms.invalid, message) : "");
    },
  });
}

/** Return the range of an option in the words for a lower end, or for both. */
function range({ low, high }, atLeast, between) {
  if ((low ?? null) === null) return "";
  return fill((high ?? null) === null ? atLeast : between, { low, high });
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const root = element.firstElementChild,
    { terms } = props;
  let drawn = null;
  return (value) => {
    const { schema = [], values: given = {} } = value || {};
    const values = { ...given };
    const wrongs = new Map();
    const form = JSON.stringify([schema, values]);
    if (form === drawn) return; // our own change: keep the focus
    drawn = form;
    if (!schema.length) {
      root.replaceChildren(make("p", { class: "hl-quiet", text: terms.none }));
      return;
    }
    root.replaceChildren(
      ...schema.map((option) => {
        const about = [option.help, range(option, terms.low, terms.range)].filter(Boolean).join(" · ");
        const changed = (value, wrong = "") => {
          const was = wrongs.size;
          if (wrong) wrongs.set(option.name, field.value || terms.no_number);
          else [values[option.name]] = [value, wrongs.delete(option.name)];
          drawn = JSON.stringify([schema, values]);
          props.value = { ...props.value, values: { ...values }, wrong: Object.fromEntries(wrongs) };
          field.setAttribute("aria-invalid", String(Boolean(wrong)));
          note.textContent = wrong || about;
          note.classList.toggle("hl-wrong", Boolean(wrong));
          if (was !== wrongs.size) trigger("change", {}); // whether the map matches the form has changed
        };
        const field = control(option, values[option.name] ?? option.default, terms, changed);
        const note = make("small", { text: about });
        return makeOption(option.name.replaceAll("_", " "), field, note);
      }),
    );
  };
}
