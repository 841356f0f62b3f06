// How figures are saved: width, resolution, panel letters and caption. All menus share these settings.
import { make } from "../wire.js";

/** @type {{width: number, dpi: number, letters: boolean, caption: boolean}} width in mm */
export const options = { width: 180, dpi: 300, letters: false, caption: true };

const RANGES = { width: [50, 400], dpi: [72, 600] };

/** Create the form of the settings; a value outside its range is marked and not used. */
export function optionsForm(terms) {
  const fields = Object.entries(terms.fields).map(([name, [text, unit]]) => {
    const isNumber = name in RANGES,
      [min, max] = RANGES[name] || [];
    const input = make(
      "input",
      isNumber
        ? { type: "number", name, min, max, step: "any", value: options[name], "aria-label": `${text}, ${unit}` }
        : { type: "checkbox", name, checked: options[name] },
    );
    const change = () => {
      const isValid = !isNumber || (input.valueAsNumber >= min && input.valueAsNumber <= max);
      input.toggleAttribute("aria-invalid", !isValid);
      if (isValid) options[name] = isNumber ? input.valueAsNumber : input.checked;
    };
    input.addEventListener("input", change);
    const reset = () => {
      if (isNumber) input.value = options[name];
      else input.checked = options[name];
      change();
    };
    const label = make("label", {}, ...(isNumber ? [text, input, unit] : [input, text]));
    return { label, reset };
  });
  const labels = fields.map(({ label }) => label),
    root = make("div", { class: "hl-share-options", role: "group", "aria-label": terms.title }, ...labels);
  return { root, reset: () => fields.forEach(({ reset }) => reset()) };
}
