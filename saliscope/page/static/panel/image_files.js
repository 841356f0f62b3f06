// Lets Gradio's image component accept NPY and TIFF files, though it accepts only the browser's own image types.
const ARRAYS = /\.(npy|npz|tiff?)$/i;
const ACCEPT = "image/*,.npy,.tif,.tiff";

/** Give array files a type that the component accepts: browsers know none for arrays, and some have none for TIFF. */
function typed(files) {
  const open = new DataTransfer();
  for (const file of files)
    open.items.add(
      ARRAYS.test(file.name) && !file.type.startsWith("image/")
        ? new File([file], file.name, { type: "image/x-array" })
        : file,
    );
  return open;
}

const strange = (files) => [...(files || [])].some((file) => ARRAYS.test(file.name) && !file.type.startsWith("image/"));

/**
 * Set the file type before the component sees the file, and raise the event again with the typed files.
 * @param {string} selector the image component
 */
export function acceptArrays(selector) {
  const inside = (event) => event.target.closest?.(selector);
  document.addEventListener(
    "click",
    (event) => {
      for (const input of inside(event)?.querySelectorAll("input[type=file]") || []) input.accept = ACCEPT;
    },
    true,
  );
  document.addEventListener(
    "change",
    (event) => {
      if (!inside(event) || !strange(event.target.files)) return;
      event.stopImmediatePropagation();
      event.target.files = typed(event.target.files).files;
      event.target.dispatchEvent(new Event("change", { bubbles: true }));
    },
    true,
  );
  document.addEventListener(
    "drop",
    (event) => {
      if (!inside(event) || !strange(event.dataTransfer?.files)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      const dataTransfer = typed(event.dataTransfer.files);
      event.target.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
    },
    true,
  );
}
