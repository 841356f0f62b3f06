// Which bands of a picture are red, green and blue; and NPY and TIFF files through the picture's component, which asks
// for the browser's own kinds of picture.
import { follow, make, painted } from "../wire.js";

const COLOURS = ["Red", "Green", "Blue"];
const ARRAYS = /\.(npy|npz|tiff?)$/i;
const ACCEPT = "image/*,.npy,.tif,.tiff";

/** The files with a type that the component takes: a browser knows none for arrays, and not everywhere one for TIFF. */
function typed(files) {
  const open = new DataTransfer();
  for (const file of files) open.items.add(ARRAYS.test(file.name) && !file.type.startsWith("image/")
    ? new File([file], file.name, { type: "image/x-array" }) : file);
  return open;
}

const strange = (files) => [...(files || [])].some((file) => ARRAYS.test(file.name) && !file.type.startsWith("image/"));

/** Before the component sees a file: give it a type. The events come again, with files that need none. */
function admit(selector) {
  const inside = (event) => event.target.closest?.(selector);
  document.addEventListener("click", (event) => {
    for (const input of inside(event)?.querySelectorAll("input[type=file]") || []) input.accept = ACCEPT;
  }, true);
  document.addEventListener("change", (event) => {
    if (!inside(event) || !strange(event.target.files)) return;
    event.stopImmediatePropagation();
    event.target.files = typed(event.target.files).files;
    event.target.dispatchEvent(new Event("change", { bubbles: true }));
  }, true);
  document.addEventListener("drop", (event) => {
    if (!inside(event) || !strange(event.dataTransfer?.files)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const dataTransfer = typed(event.dataTransfer.files);
    event.target.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
  }, true);
}

export function mount(element, props, trigger, watch) {
  const root = element.firstElementChild;
  let value = null;
  admit("#hl-picture");
  const selects = COLOURS.map((name) => make("select", { name: name.toLowerCase(), onchange: () => {
    const three = selects.map((each) => Number(each.value));
    props.value = { ...value, three, text: `${three.join(",")} of ${value.count}` };
    trigger("select", {});
  } }));
  const group = make("div", { class: "hl-three", role: "group", "aria-label": props.title },
    ...selects.map((each, k) => make("label", {}, make("span", { text: COLOURS[k] }), each)));
  const use = make("p", { class: "hl-quiet" }), about = make("p", { class: "hl-quiet" });
  const box = make("div", { class: "hl-picker", hidden: true }, group, use, about);
  root.replaceChildren(box);
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    value = props.value;
    box.hidden = !value || !value.count;
    if (!box.hidden) {
      group.hidden = value.count < 2;
      selects.forEach((select, k) => {
        if (select.options.length !== value.count) {
          select.replaceChildren(...Array.from({ length: value.count }, (_, i) => make("option", { value: i + 1, text: `Band ${i + 1}` })));
        }
        select.value = value.three[k];
      });
      [use.textContent, about.textContent] = [value.use, value.about];
      use.hidden = !value.use;
    }
    painted(element, value && value.id, since);
  });
}
