// Takes what the page sends to the board: answers of panels, the page's settings, its picture. Draws nothing.
import { follow } from "../wire.js";

/** `read(kind, value)` is the board's; what comes before the board is there waits for it. */
export const mail = {
  waiting: [],
  reader: null,
  put(kind, value) {
    if (this.reader) this.reader(kind, value);
    else this.waiting.push([kind, value]);
  },
  read(reader) {
    this.reader = reader;
    for (const [kind, value] of this.waiting.splice(0)) reader(kind, value);
  },
};

export function mount(element, props, trigger, watch) {
  follow(props, watch, ["value"], () => { if (props.value) mail.put(props.kind, props.value); });
}
