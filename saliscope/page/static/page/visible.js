// Raises "focus" once for every new answer, as soon as its tab is visible.
import { whenAnswered } from "../gradio.js";

export function mount(element, props, trigger) {
  whenAnswered(element, (key) => trigger("focus", { key }));
}
