// Explains an image that is dropped or pasted anywhere on the page, or chosen with a button of another component.
import { recordUpload } from "./address.js";
import { uploadFile } from "./stored_images.js";
import { provide, update } from "../store.js";
import { make } from "../wire.js";

const IMAGE_INPUT = "#hl-image"; // Gradio's component handles its own drops

/** Return the first file of a drop or of the clipboard. */
function firstFile(data) {
  return [...(data?.files || [])][0];
}

/**
 * Accept images anywhere on the page.
 * @param {string} text shown while a file is dragged over the page
 * @param {(path: string) => void} explain requests an uploaded image; "" if the upload has failed
 */
export function acceptImages(text, explain) {
  const banner = make("p", { class: "hl-veil", text, hidden: true });
  document.body.append(banner);
  let inside = 0; // number of elements entered but not left: each child raises its own events
  const show = (on) => {
    inside = Math.max(0, inside + on);
    banner.hidden = !inside;
  };

  async function explainFile(blob) {
    const path = await uploadFile({ blob, name: blob.name || "pasted.png" });
    if (!path) return explain("");
    const url = new URL(`gradio_api/file=${path}`, document.baseURI).href;
    await recordUpload({ url, orig_name: blob.name });
    explain(path);
  }

  /** Explain an image that does not belong to the open batch. */
  function explainOther(blob) {
    update({ steps: null });
    return explainFile(blob);
  }

  provide("explainFile", explainOther);
  provide("explainStep", explainFile);
  const hasFiles = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
  addEventListener("dragenter", (event) => {
    if (hasFiles(event)) show(1);
  });
  addEventListener("dragleave", (event) => {
    if (hasFiles(event)) show(-1);
  });
  addEventListener("dragover", (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    inside = 0;
    show(0);
    const found = firstFile(event.dataTransfer);
    if (!found || event.defaultPrevented || event.target.closest?.(IMAGE_INPUT)) return;
    event.preventDefault();
    explainOther(found);
  });
  addEventListener("paste", (event) => {
    const found = firstFile(event.clipboardData);
    if (!found || event.defaultPrevented || event.target.closest?.(IMAGE_INPUT)) return;
    event.preventDefault();
    explainOther(found);
  });
}
