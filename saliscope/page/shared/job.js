// What a view asks the server for, one request after the other: only the answer to the newest one counts.
import { StatusLine } from "./status_line.js";
import { makeButton } from "../wire.js";

export class Job {
  /**
   * @param {(event: string, data?: object) => void} trigger of the part
   * @param {{waiting: string, stop?: string, start?: string}} terms what the status says while it waits and at the start
   */
  constructor(trigger, terms) {
    this.trigger = trigger;
    this.terms = terms;
    this.number = Date.now(); // larger than the numbers of an earlier page: the server ignores smaller ones
    this.isPending = false;
    this.status = new StatusLine(terms.waiting, { text: terms.start });
    this.stop = makeButton(terms.stop, () => trigger("stop", {}), { hidden: true });
  }

  ask(event, data) {
    this.number += 1;
    this.wait(true);
    this.status.say("busy", this.terms.waiting);
    this.trigger(event, { ...data, number: this.number });
  }

  wait(isPending) {
    this.isPending = isPending;
    this.stop.hidden = !isPending;
  }

  /**
   * Take a message of the server, and show its text unless it is "done".
   * @param {?{number: number, state: string, text: string, fraction: ?number}} value see `answer_newest` in events.py
   * @returns {string} "waiting", "done" or "refused"; empty for the answer to a former request
   */
  take(value) {
    if (value?.number !== this.number) return "";
    const { state, text, fraction } = value;
    this.wait(state === "waiting");
    if (state !== "done") this.status.say(this.isPending ? "busy" : "error", text, fraction);
    return state;
  }
}
