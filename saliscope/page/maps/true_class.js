// The true class of the image, which the user enters: its rank among the predictions, and its map.
import { formatScore, namesOf, rankOf } from "./scores.js";
import { bindParameters } from "../shared/address.js";
import { likelyFirst } from "../lists/choice.js";
import { Combobox } from "../lists/combobox.js";
import { state, subscribe } from "../store.js";
import { fill, make } from "../wire.js";

export class TrueClass {
  /**
   * @param {Record<string, any>} terms
   * @param {(name: string) => void} explain requests the map of a class
   */
  constructor(terms, explain) {
    this.terms = terms;
    this.name = "";
    this.scores = null;
    this.combobox = new Combobox(
      terms.list,
      terms.true,
      () => this.items,
      (name) => this.choose(name),
      { heads: terms.heads },
    );
    this.text = make("span");
    const button = make("button", { class: "hl-link hl-bars-more", text: terms.show });
    button.addEventListener("click", () => explain(this.name));
    this.line = make("p", { role: "status", hidden: true }, this.text, " ", button);
    this.root = make("div", { class: "hl-true", hidden: true }, this.combobox.element, this.line);
    let image = state.imagePath;
    this.changed = bindParameters(
      ["true"],
      () => ({ true: this.name }),
      ({ true: name = "" }, coming) => {
        // when the user goes back, the image of that step arrives later; when the page opens, it may be here already
        this.name = name;
        this.coming = coming && Boolean(this.changed);
        this.draw();
      },
    );
    subscribe(["imagePath"], () => {
      if (image && !this.coming) this.choose(""); // another image, unless the address has both
      [image, this.coming] = [state.imagePath, false];
    });
    subscribe(["question"], () => {
      this.coming = false;
    });
  }

  get items() {
    const names = this.scores ? namesOf(this.scores, state.classes) : [];
    const none = { label: this.terms.clear, value: "" };
    return likelyFirst([none, ...names.map((name) => ({ label: name, value: name }))]);
  }

  choose(name) {
    this.name = name;
    this.draw();
    this.changed();
  }

  /** Show the rank in these scores, or nothing if there are none. */
  show(scores) {
    this.scores = scores;
    this.draw();
  }

  draw() {
    const { terms, scores, name } = this,
      names = scores && state.classes.length ? namesOf(scores, state.classes) : [],
      index = names.indexOf(name);
    this.root.hidden = !names.length;
    this.line.hidden = index < 0;
    this.combobox.set(index < 0 ? terms.unknown : name, index < 0 ? "" : name, { own: index >= 0 });
    if (index < 0) return;
    const rank = rankOf(scores, index),
      score = formatScore(scores, index),
      values = { name, score, rank: rank.toLocaleString("en"), count: names.length.toLocaleString("en") };
    this.text.textContent = fill(rank === 1 ? terms.correct : terms.rank, values);
  }
}
