// A visitor's own pictures in this browser, so that a reload or a step back brings them: they are in no link. Only the
// newest are kept, for a day.
const STORE = "pictures", MOST = 6, BYTES = 100e6, DAY = 864e5;

/** A name for a new picture. */
export const fresh = () => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => (byte % 36).toString(36)).join("");

/** Do `work(store)` in a transaction; its request's result, or undefined where the browser keeps nothing. */
function transact(mode, work) {
  return new Promise((resolve) => {
    const door = indexedDB.open("hooklens", 1);
    door.onupgradeneeded = () => door.result.createObjectStore(STORE, { keyPath: "id" });
    door.onerror = () => resolve(undefined);
    door.onsuccess = () => {
      const steps = door.result.transaction(STORE, mode), request = work(steps.objectStore(STORE));
      steps.oncomplete = () => { door.result.close(); resolve(request.result); };
      steps.onerror = steps.onabort = () => { door.result.close(); resolve(undefined); };
    };
  }).catch(() => undefined);
}

/** Keep the file that Gradio has uploaded. */
export async function remember(id, file) {
  try {
    const answer = await fetch(file.url);
    if (!answer.ok) return;
    const entry = { id, name: String(file.orig_name || "picture"), blob: await answer.blob(), at: Date.now() };
    const all = ((await transact("readonly", (store) => store.getAll())) || []).concat(entry).sort((a, b) => b.at - a.at);
    let room = BYTES;
    const stay = all.slice(0, MOST).filter((each) => Date.now() - each.at < DAY && (room -= each.blob.size) >= 0);
    await transact("readwrite", (store) => {
      for (const each of all) if (!stay.includes(each)) store.delete(each.id);
      return store.put(entry);
    });
  } catch { /* it is then gone after a reload, which says so */ }
}

/** The kept picture of that name, or undefined. */
export async function known(id) {
  const entry = /^[0-9a-z]{1,16}$/.test(id) ? await transact("readonly", (store) => store.get(id)) : undefined;
  return entry && Date.now() - entry.at < DAY ? entry : undefined;
}

/** Give a kept picture to the server again: its name there, or null. */
export async function give(entry) {
  if (!entry) return null;
  const form = new FormData();
  form.append("files", entry.blob, entry.name);
  try {
    const answer = await fetch(new URL("gradio_api/upload", document.baseURI), { method: "POST", body: form });
    return answer.ok ? (await answer.json())[0] : null;
  } catch { return null; }
}
