// What is kept of a comparison: one figure of all panels, or one zip of everything that their maps were computed from.
import { bundle } from "./bundle.js";
import { png } from "./figure.js";
import { make, npy, save } from "../wire.js";

const NAME = "comparison";

export class Saves {
  constructor(board) {
    this.board = board;
    const { terms } = board, button = (text, title, act) => make("button", { type: "button", class: "hl-button", text, title, disabled: true,
      onclick: () => this.act(act) });
    this.buttons = [button(terms.figure, terms.figure_hint, () => this.figure()), button(terms.bundle, terms.bundle_hint, () => this.bundle())];
  }

  /** Panels with a whole map of what is asked. */
  get panels() {
    return this.board.panels.filter((panel) => panel.plate.look && panel.plate.value && !panel.pending && !panel.old);
  }

  enable() {
    const { panels } = this;
    this.buttons[0].disabled = !panels.length;
    this.buttons[1].disabled = !panels.some((panel) => panel.answer.value.state === "done");
  }

  async act(work) {
    this.board.tools.say("");
    try { await work(); } catch (error) { this.board.tools.say(error.message); }
  }

  /** As figure.js takes it. */
  plate({ plate, letter }) {
    const [low, , high] = [...plate.ends.children].map((end) => end.textContent);
    return { name: letter.textContent, image: plate.surface.image, look: plate.look, value: plate.value, opacity: this.board.tools.opacity, alone: false, bar: plate.bar,
      ends: [low, "", plate.unit ? `${high} ${plate.unit}` : high] };
  }

  async figure() {
    save(await png(this.panels.map((panel) => this.plate(panel))), `${NAME}-figure.png`);
  }

  async bundle() {
    const { terms, pair } = this.board, whole = this.panels.filter((panel) => panel.answer.value.state === "done");
    const left = this.board.panels.length - whole.length;
    this.board.tools.say(terms.packing);
    const pieces = [];
    for (const panel of whole) {
      const { colours, low, high, smooth } = panel.plate.look;
      pieces.push({ value: panel.plate.value, name: panel.letter.textContent, figure: await png([this.plate(panel)]),
        view: { opacity: this.board.tools.opacity, colours, limits: [low, high], smooth } });
    }
    const more = { "figure.png": await png(whole.map((panel) => this.plate(panel))),
      "correlations.json": `${JSON.stringify(pair.correlations(whole), null, 2)}\n` };
    const { map } = pair.plate;
    if (map && pair.two.every((panel) => whole.includes(panel))) more[`difference-${pair.name}.npy`] = npy(map.values, [map.h, map.w]);
    save(await bundle(pieces, more), `${NAME}-bundle.zip`);
    this.board.tools.say(left ? terms.left_out : "");
  }
}
