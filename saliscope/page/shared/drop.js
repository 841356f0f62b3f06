// Explains an image that is dropped or pasted anywhere on the page.
import { explainFile } from "../panel/image.js";
import { make } from "../wire.js";

/** Explain the first file of a drop or of the clipboard. */
function take(event, data) {
  const [file] = data?.files || [];
  if (!file || event.defaultPrevented) return;
  event.preventDefault();
  explainFile(file);
}

/**
 * Accept images anywhere on the page.
 * @param {string} text shown while a file is dragged over the page
 */
export function acceptImages(text) {
  const banner = make("p", { class: "hl-veil", text, hidden: true });
  document.body.append(banner);
  let inside = 0; // number of elements entered but not left: each child raises its own events
  const show = (on) => {
    inside = Math.max(0, inside + on);
    banner.hidden = !inside;
  };

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
    take(event, event.dataTransfer);
  });
  addEventListener("paste", (event) => take(event, event.clipboardData));
}
