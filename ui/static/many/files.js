// The pictures of a report: chosen or dropped, and sent to the server one by one, so that no request is large.
import { give } from "../page/pictures.js";
import { make } from "../wire.js";

const AT_ONCE = 3;                                       // uploads
const MB = 1024 * 1024;

/** A drop area with what it holds; `said(sentence)` is called with a refusal, or "" when all is well again. */
export function chooser(terms, limits, said) {
  const input = make("input", { type: "file", multiple: true, hidden: true, accept: "image/*,.zip,application/zip" });
  const choose = make("button", { type: "button", class: "hl-button", text: terms.choose, onclick: () => input.click() });
  const clear = make("button", { type: "button", class: "hl-button", text: terms.clear, hidden: true, onclick: () => empty() });
  const count = make("p", { class: "hl-quiet", role: "status", text: terms.drop });
  const shown = make("ul", { class: "hl-many-shown", tabindex: 0, "aria-label": terms.shown });
  const box = make("div", { class: "hl-many-files" }, input, make("div", { class: "hl-many-tools" }, choose, clear, count), shown);
  const all = [], waiting = [];
  let sending = 0;

  const bytes = (entries) => entries.reduce((sum, each) => sum + each.file.size, 0);
  const left = () => all.filter((each) => !each.place).length;

  function describe() {
    const size = `${(bytes(all) / MB).toFixed(1)} MB`;
    count.textContent = !all.length ? terms.drop : left() ? terms.sending.replace("{done}", all.length - left()).replace("{all}", all.length)
      : `${all.length} ${all.length === 1 ? terms.file : terms.files}, ${size}`;
    clear.hidden = !all.length;
    if (!left()) for (const resolve of waiting.splice(0)) resolve();
  }

  function refusal(files) {
    const large = files.find((file) => file.size > limits.file);
    if (large) return terms.heavy.replace("{name}", large.name).replace("{size}", (large.size / MB).toFixed(1));
    if (all.length + files.length > limits.count) return terms.many.replace("{count}", all.length + files.length);
    return bytes(all) + files.reduce((sum, file) => sum + file.size, 0) > limits.bytes ? terms.large : "";
  }

  function add(files) {
    const sentence = refusal(files);
    said(sentence);
    if (sentence) return;
    for (const file of files) {
      const entry = { file, place: null, url: file.type.startsWith("image/") ? URL.createObjectURL(file) : "" };
      const name = make("span", { text: file.name, hidden: Boolean(entry.url) });
      entry.node = make("li", { title: file.name }, name);
      if (entry.url) {
        const image = make("img", { src: entry.url, alt: file.name, loading: "lazy", decoding: "async" });
        image.addEventListener("error", () => { image.remove(); name.hidden = false; });
        entry.node.prepend(image);
      }
      shown.append(entry.node);
      all.push(entry);
    }
    describe();
    while (sending < AT_ONCE && all.some((each) => !each.place && !each.begun)) send();
  }

  async function send() {
    sending += 1;
    for (let next; (next = all.find((each) => !each.place && !each.begun));) {
      next.begun = true;
      next.place = await give({ blob: next.file, name: next.file.name });
      if (!next.place && all.includes(next)) {
        said(terms.failed.replace("{name}", next.file.name));
        remove(next);
      }
      describe();
    }
    sending -= 1;
  }

  function remove(entry) {
    if (entry.url) URL.revokeObjectURL(entry.url);
    entry.node.remove();
    all.splice(all.indexOf(entry), 1);
  }

  function empty() {
    for (const entry of [...all]) remove(entry);
    said("");
    describe();
    choose.focus();
  }

  input.addEventListener("change", () => { add([...input.files]); input.value = ""; });
  box.addEventListener("dragover", (event) => { event.preventDefault(); box.dataset.over = ""; });
  for (const kind of ["dragleave", "drop"]) box.addEventListener(kind, () => delete box.dataset.over);
  box.addEventListener("drop", (event) => {
    event.preventDefault();                              // so that drop.js leaves it alone
    add([...(event.dataTransfer?.files || [])]);
  });
  /** What the server calls the files, with their own names, once all are there. */
  const sent = async () => {
    if (left()) await new Promise((resolve) => waiting.push(resolve));
    return all.map(({ place, file }) => [place, file.name]);
  };
  return { box, sent };
}
