// The choice of a second image: an example, or a file of the user. The changes of channels and the erase view use it.
import { thumbnail } from "./examples.js";
import { uploadFile } from "../shared/stored_images.js";
import { makeFileInput } from "../shared/elements.js";
import { fill, make, makeButton } from "../wire.js";

export class SecondImage {
  /**
   * @param {Record<string, any>} terms `SECOND_IMAGE` of saliscope/page/shared/messages.py
   * @param {{id: string, alt: string, src: string, at: string}[]} examples
   * @param {(second: object) => void} change gets {example}, or {file, name} of an upload
   */
  constructor(terms, examples, change) {
    this.terms = terms;
    this.change = change;
    this.previews = new Map();
    this.buttons = examples.map(({ id, alt, src, at }) =>
      make(
        "button",
        {
          "data-id": id,
          "aria-label": fill(terms.example, { name: alt }),
          title: alt,
          onclick: () => change({ example: id }),
        },
        thumbnail({ src, at }),
      ),
    );
    const input = makeFileInput({ accept: terms.accept }, ([blob]) => this.upload(blob));
    this.preview = make("img", { alt: "", hidden: true });
    this.line = make("span", { class: "hl-quiet", role: "status" });
    this.root = make(
      "div",
      { class: "hl-second", role: "group", "aria-label": terms.title, hidden: true },
      make("span", { text: terms.title }),
      make("div", { class: "hl-thumbs" }, ...this.buttons),
      input,
      makeButton(terms.upload, () => input.click()),
      this.preview,
      this.line,
    );
  }

  async upload(blob) {
    this.line.textContent = this.terms.uploading;
    const { path: file } = await uploadFile({ blob, name: blob.name });
    if (!file) {
      this.line.textContent = this.terms.upload_failed;
      return;
    }
    this.previews.set(file, URL.createObjectURL(blob));
    this.change({ file, name: blob.name });
  }

  /** Mark the chosen image: {example}, {file, name}, {gone: true} for one that a link does not contain, or null. */
  show(second) {
    for (const button of this.buttons)
      button.setAttribute("aria-pressed", String(button.dataset.id === second?.example));
    const preview = this.previews.get(second?.file);
    if (preview) this.preview.src = preview;
    this.preview.hidden = !preview;
    const { uploaded, gone } = this.terms;
    this.line.textContent = second?.name ? fill(uploaded, second) : second?.gone ? gone : "";
  }
}
