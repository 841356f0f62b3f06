// Stores the component's values in the state: as `props.into`, or as one field of it. Draws nothing.
import { change, update } from "../store.js";
import { watchProps } from "../wire.js";

export function mount(element, props, trigger, watch) {
  const { into, field } = props;
  watchProps(props, watch, ["value"], () => {
    const { value } = props;
    if (!value) return;
    if (field === null) update({ [into]: value });
    else change(into, { [field]: value });
  });
}
