// What was assumed about the user's own network, and a form to change it. A change selects "NAME?size=...".
import { makeOption, makeSelect } from "../shared/elements.js";
import { make, makeButton } from "../wire.js";

function field(name, value, choices, terms, send) {
  const [title, help] = terms.fields[name];
  const shared = { id: `hl-preprocessing-${name}`, name, onkeydown: (event) => event.key === "Enter" && send() };
  const control = choices
    ? makeSelect(shared, choices)
    : make("input", { ...shared, type: "text", value, spellcheck: "false", autocomplete: "off" });
  control.value = value;
  return makeOption(title, control, make("small", { text: help }));
}

/** @type {import("../parts.js").Mount} */
export function mount(element, { terms }, trigger) {
  const root = element.firstElementChild;
  let isOpen = false;
  return (value) => {
    const { notes = [], base, values, changed = {}, devices = [], summary } = value || {};
    const choices = { score: Object.entries(terms.scores), device: devices.map((name) => [name, name]) };
    if (!values) return root.replaceChildren();
    const send = () => {
      const settings = { ...changed };
      for (const [name, before] of Object.entries(values)) {
        const control = /** @type {HTMLInputElement} */ (fields.querySelector(`[name=${name}]`));
        const now = control.value.replaceAll(" ", "").replace("×", "x");
        if (now && now !== before.replaceAll(" ", "")) settings[name] = now;
      }
      const text = Object.entries(settings)
        .map((each) => each.join("="))
        .join("&");
      trigger("change", { model: text ? `${base}?${text}` : base });
    };
    const rows = Object.entries(values).map(([name, value]) => field(name, value, choices[name], terms, send));
    const fields = make("div", {}, ...rows);
    const buttons = [makeButton(terms.apply, send)];
    if (Object.keys(changed).length) buttons.push(makeButton(terms.reset, () => trigger("change", { model: base })));
    const details = make("details", { open: isOpen }, make("summary", { text: summary }), fields);
    details.addEventListener("toggle", () => (isOpen = details.open));
    details.append(make("div", { class: "hl-apply" }, ...buttons));
    root.replaceChildren(
      make(
        "div",
        { class: "hl-assumed", role: "group", "aria-label": terms.group },
        ...notes.map((text) => make("p", { text })),
        details,
      ),
    );
  };
}
