// The target: a class selected from a list, or sentences for a model with a text encoder. Its value is the target of a
// request in both cases.
import { mount as mountChoice } from "../lists/choice.js";
import { make } from "../wire.js";
import { SentenceForm } from "./sentences.js";

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger, watch) {
  const list = make("div", { class: "hl-choice" });
  mountChoice(make("div", {}, list), props, trigger, watch);
  const form = new SentenceForm(props.fields, (target) => {
    props.value = target;
    trigger("change", { [props.setting]: target });
  });
  element.firstElementChild.replaceChildren(list, form.element);
  const show = () => {
    list.hidden = Boolean(props.sentences);
    form.element.hidden = !props.sentences;
    form.set(props.value || "");
  };
  watch(["value", "sentences"], show);
  show();
}
