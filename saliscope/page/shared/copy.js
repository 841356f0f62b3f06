// A button that copies a text.
import { makeButton } from "../wire.js";

const PAUSE = 2000; // milliseconds for which the button says whether it has copied

/**
 * @param {{copy: string, copied: string, failed: string}} terms
 * @param {() => string} read returns the text
 * @param {Record<string, any>} more further attributes
 */
export function copyButton(terms, read, more = {}) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(read());
      button.textContent = terms.copied;
    } catch {
      button.textContent = terms.failed;
    }
    setTimeout(() => {
      button.textContent = terms.copy;
    }, PAUSE);
  };
  const button = makeButton(terms.copy, copy, more);
  return button;
}
