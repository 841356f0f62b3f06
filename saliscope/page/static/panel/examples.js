// Example images as buttons; only the example's id is sent, never a path. On phones, the first button uploads an image,
// because the upload field is folded away with the settings.
import { perform, update } from "../store.js";
import { watchProps, make } from "../wire.js";

const PATIENCE = 10_000; // milliseconds after which an image that has not arrived no longer delays other requests

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

/** Shows one example after the other in the image field: two requests at once could be answered in the wrong order. */
class ShownImage {
  constructor(request) {
    Object.assign(this, { request, asked: null, next: null });
  }

  show(id) {
    if (this.asked) {
      this.next = id;
      return;
    }
    this.asked = id;
    update({ awaitsImage: true });
    this.timer = setTimeout(() => this.arrived(id), PATIENCE);
    this.request(id);
  }

  /** Call this when the image field has an example; returns the example that is requested next, or null. */
  arrived(id) {
    if (!id || id !== this.asked) return null;
    clearTimeout(this.timer);
    const { next } = this;
    this.asked = this.next = null;
    if (next && next !== id) this.show(next);
    else update({ awaitsImage: false });
    return this.asked;
  }
}

export function mount(element, props, trigger, watch) {
  const root = make("div", { class: "hl-thumbs" }),
    note = make("p", { class: "hl-quiet", hidden: true }),
    image = new ShownImage((example) => trigger("select", { example }));
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
            image.show(item.id);
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
  watchProps(props, watch, ["value"], () => {
    const later = image.arrived(props.value?.shown);
    if (later) props.value = { chosen: later };
    mark();
  });
}
