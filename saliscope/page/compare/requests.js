// The request of each panel (the page's settings with the panel's own changes), and a cache of answers.
import { listOf } from "../parts.js";

const MAX_ANSWERS = 12; // number of answers
const sortKeys = (options) => Object.fromEntries(Object.entries(options).sort(([a], [b]) => (a < b ? -1 : 1)));

export class Requests {
  constructor() {
    this.page = { image: undefined, bands: "", names: {}, options: {} };
    this.answers = []; // latest [request, value] pairs
    this.known = []; // lists of names, each with the request that it answers
    this.classMethods = new Set(); // methods that use the class
    this.textModels = new Set(); // models with a text encoder
    this.unused = { layer: new Set(), target: new Set() }; // methods that use no layer, or no class
    this.isEqual = this.isEqual.bind(this);
  }

  /** Return the request of a panel. */
  forPanel({ own, runner, classed, score }) {
    const { image, bands, names, options } = this.page;
    const model = own.model ?? names.model,
      elsewhere = model !== names.model,
      method = own.method ?? names.method;
    const min_score = score ?? options.min_score;
    return {
      image,
      bands,
      model,
      method,
      classed,
      runner,
      layer: own.layer ?? (elsewhere ? "" : names.layer),
      target: (runner ? "" : (own.target ?? names.target)) || (this.textModels.has(model) ? names.target : ""),
      options: method === names.method ? sortKeys({ ...options, min_score }) : { min_score },
      strict: elsewhere ? { ...own } : null,
    };
  }

  /** Check whether two requests have the same answer. */
  isEqual(one, other) {
    const key = ({ layer, target, runner, classed, ...rest }) => {
      const { method } = rest,
        replaceable = classed && !this.classMethods.has(method);
      const unread = !replaceable && this.unused.target.has(method),
        bare = !replaceable && this.unused.layer.has(method);
      return JSON.stringify([rest, replaceable, bare || layer, unread || target, unread || runner]);
    };
    return key(one) === key(other);
  }

  /** Return a request in the server's format. */
  toWire(panel, request) {
    const { own, runner, classed, score } = panel,
      { image, bands, names } = this.page;
    const options = score === undefined ? this.page.options : { ...this.page.options, min_score: score };
    return {
      image,
      page: { ...names, bands },
      options,
      own: runner ? { ...own, target: undefined } : own,
      runner,
      classed,
      lists: !this.listsOf(request),
    };
  }

  listsOf({ model, layer }) {
    return this.known.find(({ of }) => of.model === model && of.layer === layer);
  }

  /** Lists are sent only once; store them. */
  learn(request, value) {
    if (value.task === "text") this.textModels.add(request.model); // their first and second sentence are the page's
    if (value.lists && !this.listsOf(request)) this.known.push({ of: request, lists: value.lists });
    if (!value.names || value.names.method !== request.method) return;
    if (!value.takes_layer) this.unused.layer.add(request.method);
    (value.reads_class ? this.classMethods : this.unused.target).add(request.method);
  }

  /** Return the lists of a panel, or those of another layer of its model; the models are those of the page. */
  listed(panel) {
    const request = this.forPanel(panel),
      found = this.listsOf(request) ?? this.known.findLast(({ of }) => of.model === request.model);
    return { ...found?.lists, model: listOf("hl-model") };
  }

  keep(request, value) {
    if (value.state !== "done") return;
    this.answers = [...this.answers.filter(([other]) => !this.isEqual(other, request)), [request, value]].slice(
      -MAX_ANSWERS,
    );
  }

  find(request) {
    const found = this.answers.find(([other]) => this.isEqual(other, request));
    return found && found[1];
  }
}
