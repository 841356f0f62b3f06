// The target: a class selected from a list, or sentences for a model with a text encoder. Its value is the target of a
// request in both cases.
import { mount as mountChoice } from "../lists/choice.js";
import { make } from "../wire.js";
import { SentenceForm } from "./sentences.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  const list = make("div", { class: "hl-choice" });
  /** @type {any} */
  const drawChoice = mountChoice(make("div", {}, list), props, trigger);
  const form = new SentenceForm(props.fields, (target) => {
    props.value = target;
    trigger("change", { [props.setting]: target });
  });
  element.firstElementChild.replaceChildren(list, form.element);
  return () => {
    drawChoice(props.value);
    list.hidden = Boolean(props.sentences);
    form.element.hidden = !props.sentences;
    form.set(props.value || "");
  };
}
