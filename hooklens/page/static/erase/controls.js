// Small controls of the erase view: numbers and the picker of the second image.
import { uploadFile } from "../page/stored_images.js";
import { fill, make, makeButton } from "../wire.js";

/** A field for a whole number with a name and a unit. */
export function numberField(text, unit, attributes) {
  const label = [text, unit].filter(Boolean).join(", "),
    input = make("input", { type: "number", step: 1, "aria-label": label, ...attributes });
  const parts = [make("span", { text }), input, make("span", { class: "hl-quiet", text: unit })];
  return { input, root: make("label", {}, ...parts) };
}

/** The choice of the second image: an example, or a file of the user. */
export class SecondImage {
  /** @param {(second: object) => void} change gets {example} or {file, name} */
  constructor(terms, examples, change) {
    Object.assign(this, { terms, change });
    this.buttons = examples.map(({ id, alt, src }) =>
      make(
        "button",
        {
          type: "button",
          "data-id": id,
          "aria-label": fill(terms.second_example, { name: alt }),
          title: alt,
          onclick: () => change({ example: id }),
        },
        make("img", { src: new URL(src, document.baseURI), alt: "", loading: "lazy" }),
      ),
    );
    this.file = make("input", { type: "file", accept: "image/*", hidden: true, onchange: () => this.upload() });
    this.says = make("span", { class: "hl-quiet", role: "status" });
    this.root = make(
      "div",
      { class: "hl-erase-second", role: "group", "aria-label": terms.second, hidden: true },
      make("span", { text: terms.second }),
      make("div", { class: "hl-thumbs" }, ...this.buttons),
      this.file,
      makeButton(terms.upload, () => this.file.click()),
      this.says,
    );
  }

  async upload() {
    const [blob] = this.file.files;
    if (!blob) return;
    const file = await uploadFile({ blob, name: blob.name });
    this.file.value = "";
    if (file) this.change({ file, name: blob.name });
    else this.says.textContent = this.terms.upload_failed;
  }

  show(isVisible, second) {
    this.root.hidden = !isVisible;
    for (const button of this.buttons)
      button.setAttribute("aria-pressed", String(button.dataset.id === second?.example));
    const { uploaded, second_gone: gone } = this.terms;
    this.says.textContent = second?.name ? fill(uploaded, second) : second?.gone ? gone : "";
  }
}
