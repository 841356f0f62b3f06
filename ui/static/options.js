// The method's options as a form, drawn from their ranges and choices; an empty field means "automatic".
import { follow, make } from "./wire.js";

function control(option, value, changed) {
  const id = `hl-option-${option.name}`;
  const shared = { id, name: option.name, title: option.help || null };
  if (option.kind === "bool") {
    return make("input", { ...shared, type: "checkbox", checked: Boolean(value), onchange: (e) => changed(e.target.checked) });
  }
  if (option.kind === "choice") {
    const pick = (e) => changed(JSON.parse(e.target.value));
    return make("select", { ...shared, onchange: pick }, ...[...(option.default === null ? [null] : []), ...option.choices].map((choice) =>
      make("option", { value: JSON.stringify(choice), text: choice === null ? "automatic" : String(choice).replaceAll("_", " "), selected: choice === value })));
  }
  const whole = option.kind === "int";
  return make("input", { ...shared, type: "number", min: option.low, max: option.high, step: option.step ?? (whole ? 1 : "any"),
    value: value ?? "", placeholder: "automatic", oninput: (e) => {
      if (e.target.value === "") return changed(option.default);
      const number = whole ? Math.round(e.target.valueAsNumber) : e.target.valueAsNumber;
      if (Number.isFinite(number) && e.target.validity.valid) changed(number);
    } });
}

function limits(option) {
  if (option.low === null || option.low === undefined) return "";
  return option.high === null || option.high === undefined ? `from ${option.low}` : `${option.low} to ${option.high}`;
}

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  let drawn = null;
  follow(props, watch, ["value"], () => {
    const { schema = [], values: given = {} } = props.value || {};
    const values = { ...given };
    const form = JSON.stringify([schema, values]);
    if (form === drawn) return;                        // our own change: keep the focus
    drawn = form;
    if (!schema.length) {
      root.replaceChildren(make("p", { class: "hl-quiet", text: props.none }));
      return;
    }
    root.replaceChildren(...schema.map((option) => {
      const changed = (value) => {
        values[option.name] = value;
        drawn = JSON.stringify([schema, values]);
        props.value = { ...props.value, values: { ...values } };
      };
      const field = control(option, values[option.name] ?? option.default, changed);
      return make("div", { class: "hl-option" },
        make("label", { for: field.id, text: option.name.replaceAll("_", " ") }), field,
        make("small", { text: [option.help, limits(option)].filter(Boolean).join(" · ") }));
    }));
  });
}
