// The image of the page: shows it, and takes another one from a file, the clipboard or the camera.
import { askQuestion, forgetBands, keepsTarget, setSettings } from "../parts.js";
import { recordImage } from "../shared/address.js";
import { fileAddress, newId, storeImage, uploadFile } from "../shared/stored_images.js";
import { follow, state, update } from "../store.js";
import { makeFileInput, showText } from "../shared/elements.js";
import { fill, make, makeButton } from "../wire.js";

const EXAMPLE = "example:";

/**
 * Show an image, without asking for its answer.
 * @param {{image: ?string, src: string}} image "example:NAME" or the path of an upload, and what the browser displays
 */
function showImage(image) {
  const name = image.image || "";
  const example = name.startsWith(EXAMPLE) ? name.slice(EXAMPLE.length) : "";
  update({ image, imagePath: name, example });
}

/** Replace the image of the page, and ask for its answer. */
function changeImage(image, own = "") {
  recordImage(image, own);
  forgetBands();
  if (!keepsTarget()) setSettings({ target: "" });
  showImage(image);
  askQuestion();
}

/** Show an example, and ask for its answer. */
export const changeToExample = ({ id, file }) => {
  update({ steps: null });
  changeImage({ image: `${EXAMPLE}${id}`, src: file });
};

/** @type {ImageField} the one of the page */
let field = null;

/**
 * Explain an image that does not belong to the open batch.
 * @param {Blob} blob
 */
export function explainFile(blob) {
  update({ steps: null });
  return field.explainFile(blob);
}

/**
 * Explain an image of the open batch.
 * @param {Blob} blob
 */
export const explainStep = (blob) => field.explainFile(blob);

class ImageField {
  constructor(element, terms) {
    this.terms = terms;
    this.image = make("img", { alt: terms.alt, hidden: true });
    this.empty = make("span", { class: "hl-quiet", text: terms.empty });
    const input = makeFileInput({ accept: terms.accept, "aria-label": terms.label }, ([file]) => explainFile(file)),
      choose = () => input.click();
    this.area = make(
      "button",
      { class: "hl-image-area", "aria-label": terms.upload, onclick: choose },
      this.image,
      this.empty,
    );
    const button = (text, onclick, more = {}) => make("button", { class: "hl-image-tool", text, onclick, ...more });
    this.remove = button("×", () => changeImage({ image: null, src: "" }), {
      "aria-label": terms.remove,
      title: terms.remove,
      class: "hl-image-remove",
      hidden: true,
    });
    const tools = make(
      "div",
      { class: "hl-image-tools" },
      button(terms.upload, choose),
      button(terms.paste, () => this.paste()),
      button(terms.camera, () => this.shoot()),
    );
    this.line = make("p", { class: "hl-quiet", role: "status", hidden: true });
    element.firstElementChild.replaceChildren(this.area, this.remove, input, tools, this.line);
    follow("image", () => this.draw());
  }

  draw() {
    const { src } = state.image;
    this.image.hidden = this.remove.hidden = !src;
    this.empty.hidden = Boolean(src);
    if (src) this.image.src = new URL(src, document.baseURI).href;
    else this.image.removeAttribute("src");
  }

  async explainFile(blob) {
    const file = { blob, name: blob.name || "pasted.png" };
    const waiting = setTimeout(() => showText(this.line, fill(this.terms.uploading, { percent: 0 })), 300);
    const onProgress = (share) =>
      this.line.hidden || showText(this.line, fill(this.terms.uploading, { percent: share }));
    const { path, error } = await uploadFile(file, onProgress);
    clearTimeout(waiting);
    showText(this.line, error ? fill(this.terms.failed, { reason: error }) : "");
    if (error) return;
    const id = newId();
    changeImage({ image: path, src: fileAddress(path) }, id);
    await storeImage(id, file);
  }

  async paste() {
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((each) => each.startsWith("image/"));
        if (type) return explainFile(await item.getType(type));
      }
    } catch {
      /* no permission: as without an image */
    }
    showText(this.line, this.terms.no_image);
  }

  /** Show the camera in a dialog, and explain the photo that the user takes. */
  async shoot() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      return showText(this.line, this.terms.no_camera);
    }
    const video = make("video", { autoplay: true, playsinline: true });
    video.muted = true;
    video.srcObject = stream;
    const dialog = make("dialog", { class: "hl-camera", "aria-label": this.terms.camera });
    const take = () => {
      const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
      canvas.getContext("2d").drawImage(video, 0, 0);
      canvas.toBlob((blob) => blob && explainFile(new File([blob], "camera.png", { type: "image/png" })));
      dialog.close();
    };
    dialog.append(
      video,
      makeButton(this.terms.shoot, take),
      makeButton(this.terms.cancel, () => dialog.close()),
    );
    dialog.addEventListener("close", () => {
      for (const track of stream.getTracks()) track.stop();
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  }
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  field = new ImageField(element, props.terms);
  return (value) => {
    if (value) showImage(value);
  };
}
