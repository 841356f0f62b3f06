// Stores the user's own images in this browser, so that a reload or a step back can restore them: they are not part of
// links. Only the newest are kept, for a day.
const STORE = "pictures",
  MAX_IMAGES = 6,
  MAX_BYTES = 100e6,
  DAY = 864e5;

/** Create an id for a new image. */
export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => (byte % 36).toString(36)).join("");

/** Run `work(store)` in a transaction; resolves to its result, or undefined if the browser stores nothing. */
function transact(mode, work) {
  return new Promise((resolve) => {
    const opening = indexedDB.open("saliscope", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "id" });
    opening.onerror = () => resolve(undefined);
    opening.onsuccess = () => {
      const transaction = opening.result.transaction(STORE, mode),
        request = work(transaction.objectStore(STORE));
      const finish = (result) => {
        opening.result.close();
        resolve(result);
      };
      transaction.oncomplete = () => finish(request.result);
      transaction.onerror = transaction.onabort = () => finish(undefined);
    };
  }).catch(() => undefined);
}

/** Store an image {blob, name}. */
export async function storeImage(id, { blob, name }) {
  const entry = { id, name, blob, at: Date.now() };
  const all = ((await transact("readonly", (store) => store.getAll())) || []).concat(entry).sort((a, b) => b.at - a.at);
  let space = MAX_BYTES;
  const kept = all.slice(0, MAX_IMAGES).filter((each) => Date.now() - each.at < DAY && (space -= each.blob.size) >= 0);
  await transact("readwrite", (store) => {
    for (const each of all) if (!kept.includes(each)) store.delete(each.id);
    return store.put(entry);
  });
}

/** Find the stored image with this id, or undefined. */
export async function findImage(id) {
  const entry = /^[0-9a-z]{1,16}$/.test(id) ? await transact("readonly", (store) => store.get(id)) : undefined;
  return entry && Date.now() - entry.at < DAY ? entry : undefined;
}

/** Return the address of an upload, relative to the page; a file may be called "50%.jpg". */
export const fileAddress = (path) => `gradio_api/file=${path.split("/").map(encodeURIComponent).join("/")}`;

/**
 * Upload an image.
 * @param {{blob: Blob, name: string}} file
 * @param {(percent: number) => void} onProgress
 * @returns {Promise<{path?: string, error?: string}>} its path on the server, or why it failed
 */
export function uploadFile({ blob, name }, onProgress = () => {}) {
  const form = new FormData(),
    request = new XMLHttpRequest();
  form.append("files", blob, name);
  return new Promise((resolve) => {
    const failed = (reason) => resolve({ error: reason });
    request.upload.addEventListener("progress", ({ loaded, total }) => onProgress(Math.round((100 * loaded) / total)));
    request.addEventListener("error", () => failed("no connection to the server"));
    request.addEventListener("load", () => {
      try {
        const answer = JSON.parse(request.responseText);
        if (request.status === 200) resolve({ path: answer[0] });
        else failed(answer.detail || answer.error || request.statusText);
      } catch {
        failed(request.responseText.slice(0, 200) || request.statusText);
      }
    });
    request.open("POST", new URL("gradio_api/upload", document.baseURI));
    request.send(form);
  });
}
