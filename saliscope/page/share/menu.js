// A "Save" button that opens a list of what can be saved, and the settings of figures.
import { optionsForm } from "./options.js";
import { dismiss, placePanel } from "../shared/dismiss.js";
import { make, makeButton } from "../wire.js";

let menus = 0;

/**
 * Copy an image; the clipboard accepts it only during a click, so it may still be in progress.
 * @param {Promise<Blob>} image
 * @param {Record<string, any>} terms
 * @returns {Promise<string>} a message
 */
export async function copyImage(image, terms) {
  try {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": image })]);
  } catch {
    throw new Error(terms.not_copied); // no permission, or no HTTPS
  }
  return terms.copied;
}

/**
 * Copy the BibTeX entries of the methods of these answers.
 * @param {{citation?: string}[]} values
 * @param {Record<string, any>} terms
 * @returns {Promise<string>} a message
 */
export async function copyCitations(values, terms) {
  const entries = new Set(values.flatMap(({ citation }) => (citation ? citation.split("\n\n") : [])));
  if (!entries.size) throw new Error(terms.no_paper);
  try {
    await navigator.clipboard.writeText([...entries].join("\n\n"));
  } catch {
    throw new Error(terms.not_copied);
  }
  return terms.copied;
}

/** A button that opens a list of buttons: `items` are [text, title, act]; errors of `act` are shown next to it. */
export class Menu {
  constructor(terms, items, opened) {
    this.terms = terms;
    this.opened = opened;
    this.entries = items.map(([label, title, act]) =>
      make("button", { title, text: label, onclick: () => this.act(act) }),
    );
    this.form = optionsForm(terms.options);
    const attributes = { class: "hl-share-items", id: `hl-share-${++menus}`, hidden: true };
    this.list = make("div", attributes, ...this.entries, this.form.root);
    const closed = { "aria-expanded": "false", "aria-controls": this.list.id, disabled: true };
    this.button = makeButton(terms.save, () => this.open(this.list.hidden), closed);
    this.note = make("p", { class: "hl-quiet hl-share-note", role: "status", hidden: true });
    this.root = make("div", { class: "hl-share" }, this.button, this.list, this.note);
    dismiss(this.root, this.button, this.list, () => this.open(false));
  }

  open(on) {
    if (on !== this.list.hidden) return;
    if (on) {
      this.opened();
      this.form.reset(); // another menu may have changed the settings
    }
    this.showMessage("");
    this.list.hidden = !on;
    this.button.setAttribute("aria-expanded", String(on));
    if (on) placePanel(this.list);
  }

  showMessage(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  async act(work) {
    this.open(false);
    this.button.focus();
    this.showMessage(this.terms.preparing);
    try {
      this.showMessage((await work()) || "");
    } catch (error) {
      this.showMessage(error.message);
    }
  }
}
