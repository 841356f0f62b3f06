// Steps through the images of a batch on the page, one after the other.
import { explainStep } from "../panel/image.js";
import { selectTab } from "../tabs.js";
import { state, subscribe, update } from "../store.js";
import { fill, make, makeSymbolButton } from "../wire.js";

const VIEW = "overlay"; // the tab that shows the map

/** @type {import("../parts.js").Mount} */
export function mount(element, { terms }) {
  const move = (step) => {
    const { files, at } = state.steps;
    update({ steps: { files, at: (at + step + files.length) % files.length } });
  };
  const button = (text, label, act) => makeSymbolButton(text, act, { "aria-label": label, title: label });
  const where = make("p", { role: "status" });
  const root = make(
    "div",
    { role: "group", "aria-label": terms.group, hidden: true },
    button("‹", terms.previous, () => move(-1)),
    where,
    button("›", terms.next, () => move(1)),
    button("×", terms.close, () => update({ steps: null })),
  );
  element.firstElementChild.append(root);
  let queue = Promise.resolve();
  subscribe(["steps"], () => {
    const { steps } = state;
    root.hidden = !steps;
    if (!steps) return;
    const { files, at } = steps;
    where.textContent = fill(terms.at, { number: at + 1, count: files.length, name: files[at].name });
    where.title = where.textContent;
    selectTab(VIEW);
    // One after the other, because the answer of a slow upload must not replace that of a later image.
    queue = queue.then(() => state.steps === steps && explainStep(files[at]));
  });
  subscribe(["example"], () => {
    if (state.example) update({ steps: null });
  });
}
