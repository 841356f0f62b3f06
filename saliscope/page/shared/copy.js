// A button that copies a text.
import { makeButton } from "../wire.js";

const PAUSE = 2000; // milliseconds for which the button says whether it has copied

/** Copy a text to the clipboard; resolves to whether it is there. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // no permission, or no HTTPS
  }
}

/**
 * Create the button.
 * @param {{copy: string, copied: string, failed: string}} terms
 * @param {() => string} read returns the text
 * @param {Record<string, any>} more further attributes
 */
export function copyButton(terms, read, more = {}) {
  const copy = async () => {
    button.textContent = (await copyText(read())) ? terms.copied : terms.failed;
    setTimeout(() => {
      button.textContent = terms.copy;
    }, PAUSE);
  };
  const button = makeButton(terms.copy, copy, more);
  return button;
}
