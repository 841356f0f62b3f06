// What was assumed about the user's own network, and a form to change it. A change selects "NAME?size=...".
import { make, makeButton } from "../wire.js";

function field(name, value, choices, terms, send) {
  const [title, help] = terms.fields[name];
  const id = `hl-preprocessing-${name}`;
  const control = choices
    ? make(
        "select",
        { id, name },
        ...choices.map(([kind, text]) => make("option", { value: kind, text, selected: kind === value })),
      )
    : make("input", { id, name, type: "text", value, spellcheck: "false", autocomplete: "off" });
  control.setAttribute("aria-describedby", `${id}-note`);
  control.onkeydown = (event) => event.key === "Enter" && send();
  const note = make("small", { id: `${id}-note`, text: help });
  return make("div", { class: "hl-option" }, make("label", { for: id, text: title }), control, note);
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
