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
      transaction.oncomplete = () => {
        opening.result.close();
        resolve(request.result);
      };
      transaction.onerror = transaction.onabort = () => {
        opening.result.close();
        resolve(undefined);
      };
    };
  }).catch(() => undefined);
}

/** Store a file that Gradio has uploaded. */
export async function storeImage(id, file) {
  try {
    const answer = await fetch(file.url);
    if (!answer.ok) return;
    const entry = { id, name: String(file.orig_name || "image"), blob: await answer.blob(), at: Date.now() };
    const all = ((await transact("readonly", (store) => store.getAll())) || [])
      .concat(entry)
      .sort((a, b) => b.at - a.at);
    let space = MAX_BYTES;
    const kept = all
      .slice(0, MAX_IMAGES)
      .filter((each) => Date.now() - each.at < DAY && (space -= each.blob.size) >= 0);
    await transact("readwrite", (store) => {
      for (const each of all) if (!kept.includes(each)) store.delete(each.id);
      return store.put(entry);
    });
  } catch {
    /* the image is then missing after a reload, which reports it */
  }
}

/** Find the stored image with this id, or undefined. */
export async function findImage(id) {
  const entry = /^[0-9a-z]{1,16}$/.test(id) ? await transact("readonly", (store) => store.get(id)) : undefined;
  return entry && Date.now() - entry.at < DAY ? entry : undefined;
}

/** Upload a stored image again; resolves to its path on the server, or null. */
export async function uploadFile(entry) {
  if (!entry) return null;
  const form = new FormData();
  form.append("files", entry.blob, entry.name);
  try {
    const answer = await fetch(new URL("gradio_api/upload", document.baseURI), { method: "POST", body: form });
    return answer.ok ? (await answer.json())[0] : null;
  } catch {
    return null;
  }
}
