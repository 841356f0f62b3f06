// Keeps the class for other images. The top prediction is kept by the name of its class. A model without this class ends
// it.
import { setSettings, settings } from "../parts.js";
import { recordChoice } from "../shared/address.js";
import { isOutdated } from "../shared/outdated.js";
import { state, subscribe } from "../store.js";
import { makeTick } from "../shared/elements.js";
import { fill, make } from "../wire.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const { input, root } = makeTick(props.text, {});
  const note = make("p", { class: "hl-quiet", role: "status" });
  let kept = null; // the class of the last answer while it is kept, and its model
  /** Do not keep a class that the new model does not have, and say so. */
  const followModel = () => {
    const { model, target } = settings(),
      isLost = props.value && kept && kept.model !== model && !target && !state.classes.some(isKept);
    note.textContent = isLost ? fill(props.lost, { name: kept.target }) : "";
    if (isLost) {
      props.value = input.checked = false;
      recordChoice();
    }
    keepPrediction();
    kept = props.value && settings().target ? settings() : null;
  };
  const isKept = ({ value }) => value === kept.target;
  /** Select the predicted class; its map is shown already. */
  const keepPrediction = () => {
    const predicted = state.likely[0]?.name;
    if (!props.value || settings().target || isOutdated("hl-bars")) return;
    if (!state.classes.some(({ value }) => value && value === predicted)) return;
    setSettings({ target: predicted });
    recordChoice();
  };
  input.addEventListener("change", () => {
    props.value = input.checked;
    keepPrediction();
    kept = props.value && settings().target ? settings() : null;
    note.textContent = "";
    recordChoice();
  });
  subscribe(["answered"], followModel);
  element.firstElementChild.append(root, note);
  return (value) => {
    input.checked = Boolean(value);
  };
}
