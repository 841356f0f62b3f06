// Saves a comparison: one figure of all panels, or one zip of everything their maps were computed from.
import { bundle } from "./bundle.js";
import { png } from "./figure.js";
import { make, encodeNpy, downloadFile } from "../wire.js";

const NAME = "comparison";

export class ComparisonExport {
  constructor(board) {
    this.board = board;
    const { terms } = board,
      button = (text, title, act) =>
        make("button", {
          type: "button",
          class: "hl-button",
          text,
          title,
          disabled: true,
          onclick: () => this.act(act),
        });
    this.buttons = [
      button(terms.figure, terms.figure_hint, () => this.figure()),
      button(terms.bundle, terms.bundle_hint, () => this.bundle()),
    ];
  }

  /** Panels with a complete map of the current request. */
  get panels() {
    return this.board.panels.filter(
      (panel) => panel.mapView.rendering && panel.mapView.value && !panel.pending && !panel.old,
    );
  }

  enable() {
    const { panels } = this;
    this.buttons[0].disabled = !panels.length;
    this.buttons[1].disabled = !panels.some((panel) => panel.answer?.value.state === "done");
  }

  async act(work) {
    this.board.tools.showMessage("");
    try {
      await work();
    } catch (error) {
      this.board.tools.showMessage(error.message);
    }
  }

  /** Return a panel in the format of figure.js. */
  figurePanel({ mapView, letter }) {
    return {
      name: letter.textContent,
      image: mapView.surface.image,
      rendering: mapView.rendering,
      value: mapView.value,
      opacity: this.board.tools.opacity,
      mapOnly: false,
      bar: mapView.bar,
      ticks: mapView.ticks,
      label: mapView.label,
      drawing: [mapView.drawing, mapView.rangeNote.textContent].filter(Boolean).join(" "),
    };
  }

  async figure() {
    downloadFile(await png(this.panels.map((panel) => this.figurePanel(panel))), `${NAME}-figure.png`);
  }

  async bundle() {
    const { terms, pair } = this.board,
      whole = this.panels.filter((panel) => panel.answer?.value.state === "done");
    const left = this.board.panels.length - whole.length;
    this.board.tools.showMessage(terms.packing);
    const pieces = [];
    for (const panel of whole) {
      const { colors, low, high, smooth } = panel.mapView.rendering;
      pieces.push({
        value: panel.mapView.value,
        name: panel.letter.textContent,
        figure: await png([this.figurePanel(panel)]),
        view: { opacity: this.board.tools.opacity, colours: colors, limits: [low, high], smooth },
      });
    }
    const more = {
      "figure.png": await png(whole.map((panel) => this.figurePanel(panel))),
      "correlations.json": `${JSON.stringify(pair.correlations(whole), null, 2)}\n`,
    };
    const { map } = pair.mapView;
    if (map && pair.selected.every((panel) => whole.includes(panel)))
      more[`difference-${pair.name}.npy`] = encodeNpy(map.values, [map.h, map.w]);
    downloadFile(await bundle(pieces, this.board.props.save, more), `${NAME}-bundle.zip`);
    this.board.tools.showMessage(left ? terms.left_out : "");
  }
}
