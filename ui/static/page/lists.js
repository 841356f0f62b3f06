// Gradio's lists let the focus fall out of the page where Tab leaves an open one: it goes on to the next control.
const FIELDS = "a[href], button, input, select, textarea, canvas, [tabindex]";

function next(field, back) {
  const all = [...document.querySelectorAll(FIELDS)].filter((each) => each === field
    || (each.tabIndex >= 0 && !each.disabled && each.checkVisibility({ visibilityProperty: true })));
  return all[all.indexOf(field) + (back ? -1 : 1)];
}

export function mount() {
  document.addEventListener("keydown", (event) => {
    const field = event.target;
    if (event.key !== "Tab" || !field.matches?.("input[role=combobox]")) return;
    const to = next(field, event.shiftKey);
    setTimeout(() => { if (document.activeElement === document.body) to?.focus(); }, 50);
  }, true);
}
