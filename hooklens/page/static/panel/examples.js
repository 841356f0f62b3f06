// Example images as buttons; only the example's id is sent, never a path. On phones, the first button uploads an image,
// because the upload field is folded away with the settings.
import { perform, update } from "../store.js";
import { watchProps, make } from "../wire.js";

/** Create the button that opens the file dialog of the system. */
function uploadButton(text, accept) {
  const input = make("input", { type: "file", accept, hidden: true, "aria-label": text });
  input.addEventListener("change", () => {
    if (input.files[0]) perform("explainFile", input.files[0]);
    input.value = ""; // so that the same file can be chosen again
  });
  const button = make("button", { type: "button", class: "hl-upload", text, onclick: () => input.click() });
  return [button, input];
}

export function mount(element, props, trigger, watch) {
  const root = make("div", { class: "hl-thumbs" }),
    note = make("p", { class: "hl-quiet", hidden: true });
  element.firstElementChild.append(root, note);
  root.append(...uploadButton(props.terms.upload, props.terms.accept));
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", props.terms.group);
  for (const item of props.items || []) {
    root.append(
      make(
        "button",
        {
          type: "button",
          title: item.alt,
          "data-id": item.id,
          onclick: () => {
            props.value = { chosen: item.id };
            mark();
            trigger("select", { example: item.id }); // shows the image
            trigger("explain", { example: item.id });
          },
        },
        make("img", { src: item.src, alt: item.alt, width: 56, height: 56 }),
      ),
    );
  }
  function mark() {
    const chosen = props.value && props.value.chosen;
    update({ example: chosen || "" });
    for (const button of root.querySelectorAll("[data-id]")) {
      button.setAttribute("aria-pressed", String(button.dataset.id === chosen));
    }
    note.textContent = (props.items || []).find((item) => item.id === chosen)?.note || "";
    note.hidden = !note.textContent;
  }
  watchProps(props, watch, ["value"], mark);
}
