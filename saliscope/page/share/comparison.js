// Saves a comparison: one figure of all panels, or one zip of everything their maps were computed from.
import { bundle } from "./bundle.js";
import { pdf, png, svg } from "./figure.js";
import { copyCitations, copyImage, Menu } from "./menu.js";
import { encodeNpy, downloadFile } from "../wire.js";

const NAME = "comparison";

export class ComparisonExport {
  constructor(board) {
    this.board = board;
    const terms = board.props.save,
      figure = (suffix, create) => async () => downloadFile(await create(this.figurePanels), `${NAME}-figure${suffix}`);
    const items = [
      [...terms.png, figure(".png", png)],
      [...terms.svg, figure(".svg", svg)],
      [...terms.pdf, figure(".pdf", pdf)],
      [...terms.copy, () => copyImage(png(this.figurePanels), terms)],
      [
        ...terms.bibtex,
        () =>
          copyCitations(
            this.panels.map(({ mapView }) => mapView.value),
            terms,
          ),
      ],
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

  get figurePanels() {
    return this.panels.map((panel) => this.figurePanel(panel));
  }

  enable() {
    this.menu.button.disabled = !this.panels.length;
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

  /** Save everything; returns a message if maps are left out. */
  async bundle() {
    const { terms, pair } = this.board,
      { whole } = this,
      left = this.board.panels.length - whole.length;
    const pieces = [];
    for (const panel of whole) {
      const { colors, low, high, smooth } = panel.mapView.rendering;
      pieces.push({
        value: panel.mapView.value,
        name: panel.letter.textContent,
        figure: await png([this.figurePanel(panel)]),
        view: { opacity: this.board.tools.opacity, colors, limits: [low, high], smooth },
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
    return left ? terms.left_out : "";
  }
}
