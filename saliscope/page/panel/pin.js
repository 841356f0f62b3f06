// Keeps the class for other images. The top prediction is kept by the name of its class.
import { setSettings, settings } from "../parts.js";
import { recordChoice } from "../shared/address.js";
import { isOutdated } from "../shared/outdated.js";
import { state, subscribe } from "../store.js";
import { makeTick } from "../shared/elements.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props) {
  const { input, root } = makeTick(props.text, {});
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
    recordChoice();
  });
  subscribe(["answered"], keepPrediction);
  element.firstElementChild.append(root);
  return (value) => {
    input.checked = Boolean(value);
  };
}
