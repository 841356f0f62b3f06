// The toolbar of the erase view. It holds no state of the edit: the board sets it after every change.
import { WholeImage } from "./whole.js";
import { Segments } from "../navigation/segments.js";
import { SecondImage } from "../panel/second_image.js";
import { makeLabel } from "../shared/elements.js";
import { fill, make, makeButton, makeSymbolButton } from "../wire.js";

const SIZES = { min: 2, max: 50, value: 12 }; // percent of the shorter side
const TOP = 20; // percent of the pixels

export class Tools {
  constructor(board) {
    const { terms, props } = board;
    this.board = board;
    this.terms = terms;
    const pairs = (...names) => names.map((name) => [name, terms[name]]);
    this.tool = new Segments(terms.tool, pairs("brush", "box"), () => board.painter.draw());
    this.mode = new Segments(terms.mode, pairs("add", "remove"), () => {});
    this.size = make("input", { type: "range", name: "size", ...SIZES, oninput: () => this.followSize() });
    const percent = { min: 0.1, max: 100, step: "any", value: TOP, name: "top", "aria-label": terms.top };
    this.top = make("input", { type: "number", ...percent });
    const top = make(
      "div",
      { class: "hl-erase-top" },
      makeButton(terms.top_button, () => this.eraseTop()),
      this.top,
      make("span", { text: terms.top_unit }),
    );
    const button = (name, act, more = {}) => makeButton(terms[name], act, more);
    const symbol = (name, sign, act, keys) =>
      makeSymbolButton(sign, act, {
        "aria-label": terms[name],
        "aria-keyshortcuts": keys,
        title: `${terms[name]} (${keys.replace("Control", "Ctrl")})`,
      });
    this.undo = symbol("undo", "↶", () => board.travel(-1), "Control+Z");
    this.redo = symbol("redo", "↷", () => board.travel(1), "Control+Shift+Z");
    this.clear = button("clear", () => board.push(""), { title: terms.clear_hint });
    const search = (goal) => button(goal, () => board.request(goal), { title: terms.search_hint });
    this.keep = search("keep");
    this.half = search("half");
    this.change = search("change");
    this.fill = new Segments(
      terms.fill,
      Object.entries(terms.fills).map(([value, [text, title]]) => [value, text, title]),
      (value) => board.change({ fill: value }),
    );
    this.second = new SecondImage(terms.second, props.examples, (second) => board.push(board.current.text, second));
    this.whole = new WholeImage(terms, props.ranges, (values) => board.change({ whole: values }));
    const opacity = { type: "range", name: "opacity", min: 0, max: 100, value: 70, oninput: () => board.mix() };
    this.opacity = make("input", opacity);
    const row = (...parts) => make("div", { class: "hl-erase-row" }, ...parts);
    this.root = make(
      "div",
      { class: "hl-erase-tools", role: "group", "aria-label": terms.tools },
      row(
        this.undo,
        this.redo,
        this.tool.root,
        this.mode.root,
        makeLabel(terms.size, this.size),
        top,
        button("invert", () => board.add("invert")),
        this.clear,
      ),
      row(make("div", { class: "hl-erase-fill" }, make("span", { text: terms.fill }), this.fill.root), this.whole.root),
      this.second.root,
      row(this.keep, this.half, this.change, makeLabel(terms.opacity, this.opacity)),
    );
    this.followSize();
  }

  followSize() {
    const { size_value: text } = this.terms;
    this.size.setAttribute("aria-valuetext", fill(text, { percent: this.size.value }));
    this.board.painter?.draw();
  }

  /** @returns {import("./painter.js").Brush} */
  get brush() {
    return { tool: this.tool.value, add: this.mode.value === "add", size: this.size.valueAsNumber / 100 };
  }

  eraseTop() {
    // in tenths of a percent; the server reports a value out of range
    this.board.add(`top.${this.top.value === "" ? "" : Math.round(10 * this.top.valueAsNumber)}`);
  }

  /** Show the second image if the fill, `value`, uses one. */
  showSecond(value, second) {
    this.second.root.hidden = value !== "image";
    this.second.show(second);
  }

  /** Show the values of an edit. */
  follow({ fill: value, whole }, second, { back, forward, isEmpty }) {
    this.fill.set(value);
    this.whole.set(whole);
    this.showSecond(value, second);
    this.undo.disabled = !back;
    this.redo.disabled = !forward;
    this.clear.disabled = isEmpty;
  }
}
