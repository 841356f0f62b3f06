// The method's options as a form, drawn from their ranges and choices; an empty field means "automatic". A number that
// cannot be is said at its field; the form then asks nothing, and the last answer stays, marked as old.
import { follow, make } from "../wire.js";

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
      const { value: text, valueAsNumber: number, validity } = e.target;
      if (text === "" && !validity.badInput) return changed(option.default);
      const wrong = !Number.isFinite(number) || validity.rangeUnderflow || validity.rangeOverflow || (whole && !Number.isInteger(number));
      changed(number, wrong ? `Must be a ${whole ? "whole " : ""}number ${range(option)}, not ${text || "this"}.` : "");
    } });
}

function range({ low, high }) {
  const [least, most] = [low ?? null, high ?? null];
  return least === null ? "" : most === null ? `of at least ${least}` : `from ${least} to ${most}`;
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
    const wrongs = new Map();
    const form = JSON.stringify([schema, values]);
    if (form === drawn) return;                        // our own change: keep the focus
    drawn = form;
    if (!schema.length) {
      root.replaceChildren(make("p", { class: "hl-quiet", text: props.none }));
      return;
    }
    root.replaceChildren(...schema.map((option) => {
      const about = [option.help, limits(option)].filter(Boolean).join(" · ");
      const changed = (value, wrong = "") => {
        const was = wrongs.size;
        if (wrong) wrongs.set(option.name, field.value || "no number");
        else [values[option.name]] = [value, wrongs.delete(option.name)];
        drawn = JSON.stringify([schema, values]);
        props.value = { ...props.value, values: { ...values }, wrong: Object.fromEntries(wrongs) };
        field.setAttribute("aria-invalid", String(Boolean(wrong)));
        note.textContent = wrong || about;
        note.classList.toggle("hl-wrong", Boolean(wrong));
        if (was !== wrongs.size) trigger("select", {});  // the map is that of the last valid numbers, or is so again
      };
      const field = control(option, values[option.name] ?? option.default, changed);
      const note = make("small", { id: `${field.id}-note`, text: about });
      field.setAttribute("aria-describedby", note.id);
      return make("div", { class: "hl-option" },
        make("label", { for: field.id, text: option.name.replaceAll("_", " ") }), field, note);
    }));
  });
}
