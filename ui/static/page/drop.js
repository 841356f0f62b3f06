// A picture dropped or pasted anywhere on the page is explained, as one chosen by its button.
import { pictured } from "./address.js";
import { give } from "./pictures.js";
import { make } from "../wire.js";

const HERE = "#hl-picture";                              // Gradio's own part takes what is dropped on it

/** The first file of a drop or of the clipboard. */
function file(data) {
  return [...(data?.files || [])][0];
}

export function mount(element, props, trigger) {
  const veil = make("p", { class: "hl-veil", text: props.words, hidden: true });
  document.body.append(veil);
  let inside = 0;                                        // elements entered and not left: each child raises its own events
  const show = (on) => { inside = Math.max(0, inside + on); veil.hidden = !inside; };

  async function take(blob) {
    const place = await give({ blob, name: blob.name || "pasted.png" });
    if (!place) return trigger("select", { dropped: "" });
    const url = new URL(`gradio_api/file=${place}`, document.baseURI).href;
    await pictured({ url, orig_name: blob.name });
    trigger("select", { dropped: place });
  }

  const carries = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
  addEventListener("dragenter", (event) => { if (carries(event)) show(1); });
  addEventListener("dragleave", (event) => { if (carries(event)) show(-1); });
  addEventListener("dragover", (event) => { if (carries(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    inside = 0;
    show(0);
    const found = file(event.dataTransfer);
    if (!found || event.defaultPrevented || event.target.closest?.(HERE)) return;
    event.preventDefault();
    take(found);
  });
  addEventListener("paste", (event) => {
    const found = file(event.clipboardData);
    if (!found || event.defaultPrevented || event.target.closest?.(HERE)) return;
    event.preventDefault();
    take(found);
  });
}
