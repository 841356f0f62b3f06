// A "Save" button that opens a list of what can be saved, and the settings of figures.
import { pdf, png, svg } from "./figure.js";
import { optionsForm } from "./options.js";
import { copyText } from "../shared/copy.js";
import { Disclosure, placePanel } from "../shared/dismiss.js";
import { showText } from "../shared/elements.js";
import { make, makeButton, downloadFile } from "../wire.js";

/**
 * Copy an image; the clipboard accepts it only during a click, so it may still be in progress.
 * @param {Promise<Blob>} image
 * @param {Record<string, any>} terms
 * @returns {Promise<string>} a message
 */
async function copyImage(image, terms) {
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
  if (!(await copyText([...entries].join("\n\n")))) throw new Error(terms.not_copied);
  return terms.copied;
}

/**
 * Return an action that saves a file.
 * @param {() => string} name of the file when the action starts, also if another map arrives meanwhile
 * @param {string} suffix
 * @param {() => Blob | Promise<Blob>} create
 */
export const saveAs = (name, suffix, create) => async () => {
  const path = name() + suffix;
  downloadFile(await create(), path);
};

/**
 * Return the entries of a menu that save or copy a figure.
 * @param {Record<string, any>} terms
 * @param {() => string} name of the files, without "-figure.png"
 * @param {() => import("./figure.js").Panel[]} panels
 */
export function figureItems(terms, name, panels) {
  const file = (suffix, create) => saveAs(name, `-figure${suffix}`, () => create(panels()));
  return [
    [...terms.png, file(".png", png)],
    [...terms.svg, file(".svg", svg)],
    [...terms.pdf, file(".pdf", pdf)],
    [...terms.copy, () => copyImage(png(panels()), terms)],
  ];
}

/** A button that opens a list of buttons: `items` are [text, title, act]; errors of `act` are shown next to it. */
export class Menu extends Disclosure {
  constructor(terms, items, prepare) {
    const entries = items.map(([text, title, act]) => make("button", { title, text, onclick: () => this.act(act) })),
      form = optionsForm(terms.options);
    const list = make("div", { class: "hl-share-items" }, ...entries, form.root);
    super(makeButton(terms.save, null, { disabled: true }), list, "hl-share");
    this.terms = terms;
    this.prepare = prepare;
    this.form = form;
    this.entries = entries;
    this.note = make("p", { class: "hl-quiet hl-share-note", role: "status", hidden: true });
    this.root.append(this.note);
  }

  opened() {
    this.prepare();
    this.form.reset(); // another menu may have changed the settings
    showText(this.note, "");
    placePanel(this.panel);
  }

  closed() {
    showText(this.note, "");
  }

  async act(work) {
    this.open(false);
    this.button.focus();
    showText(this.note, this.terms.preparing);
    try {
      showText(this.note, (await work()) || "");
    } catch (error) {
      showText(this.note, error.message);
    }
  }
}
