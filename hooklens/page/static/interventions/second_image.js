// Chooses the second image of a swap: an example, or an upload.
import { uploadFile } from "../page/stored_images.js";
import { make, makeButton } from "../wire.js";

export class SecondImage {
  /**
   * @param {object} terms
   * @param {{id: string, alt: string, src: string}[]} examples
   * @param {() => void} changed called after each choice
   */
  constructor(terms, examples, changed) {
    Object.assign(this, { terms, changed, example: "", path: "" });
    this.input = make("input", { type: "file", accept: terms.accept, hidden: true, "aria-label": terms.upload });
    this.input.addEventListener("change", () => this.send(this.input.files[0]));
    this.preview = make("img", { alt: "", width: 40, height: 40, hidden: true });
    this.button = makeButton(terms.upload, () => this.input.click(), { "aria-pressed": "false" });
    this.thumbs = examples.map(({ id, alt, src }) =>
      make(
        "button",
        { type: "button", title: alt, "aria-pressed": "false", "data-id": id, onclick: () => this.choose(id, "") },
        make("img", { src, alt, width: 40, height: 40, loading: "lazy" }),
      ),
    );
    this.line = make("span", { class: "hl-quiet", role: "status" });
    const group = { class: "hl-change-images", role: "group", "aria-label": terms.other };
    this.root = make(
      "div",
      group,
      make("span", { text: terms.other }),
      ...this.thumbs,
      this.button,
      this.preview,
      this.input,
      this.line,
    );
  }

  choose(example, path) {
    Object.assign(this, { example, path });
    for (const thumb of this.thumbs) thumb.setAttribute("aria-pressed", String(thumb.dataset.id === example));
    this.button.setAttribute("aria-pressed", String(Boolean(path)));
    this.preview.hidden = !path;
    this.line.textContent = "";
    this.changed();
  }

  async send(file) {
    this.input.value = ""; // so that the same file can be chosen again
    if (!file) return;
    this.line.textContent = this.terms.uploading;
    const path = await uploadFile({ blob: file, name: file.name });
    if (!path) {
      this.line.textContent = this.terms.upload_failed;
      return;
    }
    if (this.preview.src) URL.revokeObjectURL(this.preview.src);
    this.preview.src = URL.createObjectURL(file);
    this.choose("", path);
  }

  get chosen() {
    return this.path ? { path: this.path } : { example: this.example };
  }
}
