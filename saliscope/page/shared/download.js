// Saves a file that the server has written for the page.
import { state, subscribe } from "../store.js";
import { downloadFile } from "../wire.js";

/** Save every file that arrives. Its name on the server is not the one that the user expects. */
export function downloadFiles() {
  subscribe(["download"], async () => {
    const { src, name } = state.download,
      answer = await fetch(new URL(src, document.baseURI));
    if (answer.ok) downloadFile(await answer.blob(), name);
  });
}
