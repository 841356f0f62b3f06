// Saves the maps before and after an edit: figures of both, the new map, and a bundle that repeats the edit.
import { bundle } from "../share/bundle.js";
import { png } from "../share/figure.js";
import { figureItems, Menu, saveAs } from "../share/menu.js";
import { encodeNpy } from "../wire.js";

export class Saving {
  constructor(board) {
    this.board = board;
    const terms = board.props.save,
      name = () => `${board.after.value.name}-edited`,
      file = (suffix, create) => saveAs(name, suffix, create);
    const items = [
      ...figureItems(terms, name, () => this.panels),
      [...terms.values, file(".npy", () => encodeNpy(board.after.map.values, [board.after.map.h, board.after.map.w]))],
      [...terms.bundle, file("-bundle.zip", () => this.bundle())],
    ];
    this.menu = new Menu(terms, items, () => {
      const entry = this.menu.entries.at(-1);
      entry.disabled = board.after.value?.state !== "done";
      entry.title = entry.disabled ? terms.stopped : terms.bundle[1];
    });
  }

  /** Both maps in the format of figure.js. */
  get panels() {
    const { before, after, terms } = this.board;
    return [
      { ...before.panel, name: terms.before },
      { ...after.panel, name: terms.after },
    ];
  }

  async bundle() {
    const { after, shownSecond } = this.board,
      piece = { value: after.value, view: after.settings, figure: await png(this.panels) };
    return bundle([piece], this.board.props.save, {}, shownSecond);
  }
}
