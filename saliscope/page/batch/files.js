// Images for a report: selected or dropped, and uploaded one by one to keep each request small.
import { readImages } from "./archive.js";
import { uploadFile } from "../shared/stored_images.js";
import { update } from "../store.js";
import { makeFileInput } from "../shared/elements.js";
import { make, makeButton } from "../wire.js";

const AT_ONCE = 3; // parallel uploads
const MB = 1024 * 1024;

const bytes = (files) => files.reduce((sum, file) => sum + file.size, 0);
const megabytes = (size) => (size / MB).toFixed(1);

/** A drop area and its file list. */
export class FileChooser {
  /**
   * @param {Record<string, any>} terms
   * @param {{count: number, bytes: number, file: number}} limits number of files, bytes in total, bytes of one file
   * @param {(text: string) => void} onMessage called with a validation error, or "" if there is none
   * @param {() => void} onExamples called if the user wants to use the example images
   */
  constructor(terms, limits, onMessage, onExamples) {
    this.terms = terms;
    this.limits = limits;
    this.onMessage = onMessage;
    this.entries = [];
    this.lanes = Array.from({ length: AT_ONCE }, () => Promise.resolve()); // of uploads, one after the other
    this.lane = 0;
    const kinds = { multiple: true, accept: "image/*,.zip,application/zip" },
      input = makeFileInput(kinds, (files) => this.add(files));
    this.choose = makeButton(terms.choose, () => input.click());
    this.clear = makeButton(terms.clear, () => this.empty(), { hidden: true });
    this.tryExamples = makeButton(terms.examples, () => onExamples());
    this.count = make("p", { class: "hl-quiet", role: "status", text: terms.drop });
    this.list = make("ul", { class: "hl-many-shown", tabindex: 0, "aria-label": terms.shown });
    const tools = make("div", { class: "hl-many-tools" }, this.choose, this.tryExamples, this.clear, this.count);
    this.box = make("div", { class: "hl-many-files" }, input, tools, this.list);
    this.listenForDrops();
  }

  listenForDrops() {
    const { box } = this;
    box.addEventListener("dragover", (event) => {
      event.preventDefault();
      box.dataset.over = "";
    });
    for (const kind of ["dragleave", "drop"]) box.addEventListener(kind, () => delete box.dataset.over);
    box.addEventListener("drop", (event) => {
      event.preventDefault(); // drop.js ignores handled events
      this.add([...(event.dataTransfer?.files || [])]);
    });
  }

  /** Number of files that are not uploaded yet. */
  get left() {
    return this.entries.filter((entry) => !entry.path).length;
  }

  /** Wait for all uploads and return [server path, original name] pairs. */
  async upload() {
    while (this.left) await Promise.all(this.lanes); // more may be added meanwhile
    return this.entries.map(({ path, file }) => [path, file.name]);
  }

  describe() {
    const { entries, left, terms } = this,
      all = entries.length;
    const size = megabytes(bytes(entries.map(({ file }) => file)));
    this.count.textContent = !all
      ? terms.drop
      : left
        ? terms.sending.replace("{done}", all - left).replace("{all}", all)
        : terms.selected[all === 1 ? 0 : 1].replace("{count}", all).replace("{size}", size);
    this.clear.hidden = !all;
    this.tryExamples.hidden = all > 0;
    if (!left) update({ uploaded: entries.filter(({ url }) => url).map(({ path }) => path) });
  }

  /** Return why the files cannot be added, or "". */
  validate(files) {
    const { limits, terms } = this,
      all = [...this.entries.map(({ file }) => file), ...files];
    const large = files.find((file) => file.size > limits.file);
    if (large) return terms.heavy.replace("{name}", large.name).replace("{size}", megabytes(large.size));
    if (all.length > limits.count) return terms.many.replace("{count}", all.length);
    return bytes(all) > limits.bytes ? terms.large : "";
  }

  add(files) {
    const error = this.validate(files);
    this.onMessage(error);
    if (error) return;
    for (const file of files) this.append(file);
    this.describe();
  }

  /** Add files from these addresses of this server. */
  async fetch(addresses) {
    const download = async (address) => {
      const answer = await fetch(new URL(address, document.baseURI)),
        name = address.split("/").at(-1);
      if (!answer.ok) throw new Error(this.terms.failed.replace("{name}", name));
      const blob = await answer.blob();
      return new File([blob], name, { type: blob.type });
    };
    try {
      this.add(await Promise.all(addresses.map(download)));
    } catch (error) {
      this.onMessage(error.message);
    }
  }

  /** The images among the files, and those in zip archives, in the order of the list. */
  get images() {
    const all = this.entries.flatMap((entry) => [entry, ...entry.members]);
    return all.filter(({ url }) => url).map(({ file }) => file);
  }

  append(file) {
    const item = this.createItem(file, file.type.startsWith("image/")),
      entry = { ...item, path: null, members: [] };
    this.list.append(entry.node);
    this.entries.push(entry);
    this.lane = (this.lane + 1) % AT_ONCE;
    this.lanes[this.lane] = this.lanes[this.lane].then(() => this.send(entry));
    if (!entry.url) readImages(file, this.limits).then((images) => this.appendMembers(entry, images));
  }

  /** List the images of a zip archive after it; they are not uploaded again. */
  appendMembers(entry, images) {
    if (!this.entries.includes(entry)) return; // removed in the meantime
    entry.members = images.map((file) => this.createItem(file, true));
    entry.node.after(...entry.members.map(({ node }) => node));
  }

  createItem(file, isImage) {
    const url = isImage ? URL.createObjectURL(file) : "",
      name = make("span", { text: file.name, hidden: isImage }),
      node = make("li", { title: file.name }, isImage ? this.createButton(file, url, name) : name);
    return { file, url, node };
  }

  /** Create the button that explains an image of the list on the page. */
  createButton(file, url, name) {
    const title = this.terms.show.replace("{name}", () => file.name),
      image = make("img", { src: url, alt: "", loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => {
      image.remove();
      name.hidden = false;
    });
    const onclick = () => update({ steps: { files: this.images, at: this.images.indexOf(file) } });
    return make("button", { title, "aria-label": title, onclick }, image, name);
  }

  async send(entry) {
    if (!this.entries.includes(entry)) return; // removed in the meantime
    const { name } = entry.file;
    ({ path: entry.path } = await uploadFile({ blob: entry.file, name }));
    if (!entry.path && this.entries.includes(entry)) {
      this.onMessage(this.terms.failed.replace("{name}", name));
      this.remove(entry);
    }
    this.describe();
  }

  remove(entry) {
    for (const { url, node } of [entry, ...entry.members]) {
      if (url) URL.revokeObjectURL(url);
      node.remove();
    }
    this.entries.splice(this.entries.indexOf(entry), 1);
  }

  empty() {
    for (const entry of [...this.entries]) this.remove(entry);
    this.onMessage("");
    this.describe();
    this.choose.focus();
  }
}
