// Saves a comparison: one figure of all panels, or one zip of everything their maps were computed from.
import { bundle } from "./bundle.js";
import { png } from "./figure.js";
import { copyCitations, figureItems, Menu } from "./menu.js";
import { encodeNpy, downloadFile } from "../wire.js";

const NAME = "comparison";

/** Return a panel in the format of figure.js. */
function figurePanel({ mapView, letter }) {
  const drawing = [mapView.drawing, mapView.rangeNote.textContent].filter(Boolean).join(" ");
  return { ...mapView.panel, name: letter.textContent, drawing };
}

export class ComparisonExport {
  constructor(board) {
    this.board = board;
    const terms = board.props.save,
      values = () => this.panels.map(({ mapView }) => mapView.value),
      panels = () => this.panels.map(figurePanel);
    const items = [
      ...figureItems(terms, () => NAME, panels),
      [...terms.bibtex, () => copyCitations(values(), terms)],
      [...terms.bundle, () => this.bundle()],
    ];
    this.menu = new Menu(terms, items, () => {
      this.menu.entries.at(-1).disabled = !this.whole.length;
    });
  }

  /** Panels with a complete map of the current request. */
  get panels() {
    return this.board.panels.filter(
      (panel) => panel.mapView.rendering && panel.mapView.value && !panel.pending && !panel.old,
    );
  }

  /** Panels whose map was not stopped. */
  get whole() {
    return this.panels.filter((panel) => panel.answer?.value.state === "done");
  }

  enable() {
    this.menu.button.disabled = !this.panels.length;
  }

  /** Save everything; returns a message if maps are left out. */
  async bundle() {
    const { terms, pair } = this.board,
      { whole } = this,
      left = this.board.panels.length - whole.length;
    const pieces = [];
    for (const panel of whole) {
      const { value, settings: view } = panel.mapView;
      pieces.push({ value, view, name: panel.letter.textContent, figure: await png([figurePanel(panel)]) });
    }
    const more = {
      "figure.png": await png(whole.map(figurePanel)),
      "correlations.json": `${JSON.stringify(pair.correlations(whole), null, 2)}\n`,
    };
    const { map } = pair.mapView;
    if (map && pair.selected.every((panel) => whole.includes(panel)))
      more[`difference-${pair.name}.npy`] = encodeNpy(map.values, [map.h, map.w]);
    downloadFile(await bundle(pieces, this.board.props.save, more), `${NAME}-bundle.zip`);
    return left ? terms.left_out : "";
  }
}
