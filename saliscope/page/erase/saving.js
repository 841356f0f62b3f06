// Saves the maps before and after an edit: figures of both, the new map, and a bundle that repeats the edit.
import { bundle } from "../share/bundle.js";
import { pdf, png, svg } from "../share/figure.js";
import { copyImage, Menu } from "../share/menu.js";
import { downloadFile, encodeNpy } from "../wire.js";

export class Saving {
  constructor(board) {
    this.board = board;
    const terms = board.props.save,
      file = (suffix, create) => async () => downloadFile(await create(), `${board.after.value.name}-edited${suffix}`),
      figure = (format) => () => format(this.panels);
    const items = [
      [...terms.png, file("-figure.png", figure(png))],
      [...terms.svg, file("-figure.svg", figure(svg))],
      [...terms.pdf, file("-figure.pdf", figure(pdf))],
      [...terms.copy, () => copyImage(figure(png)(), terms)],
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
    return [before, after].map((view, k) => ({
      name: [terms.before, terms.after][k],
      image: view.surface.image,
      rendering: view.rendering,
      value: view.value,
      opacity: this.board.opacity,
      mapOnly: false,
      bar: view.bar,
      ticks: view.ticks,
      label: view.label,
      drawing: view.drawing,
    }));
  }

  async bundle() {
    const { after, opacity, shownSecond } = this.board,
      { colors, low, high, smooth } = after.rendering;
    const piece = {
      value: after.value,
      figure: await png(this.panels),
      view: { opacity, colors, limits: [low, high], smooth },
    };
    return bundle([piece], this.board.props.save, {}, shownSecond);
  }
}
