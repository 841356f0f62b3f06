// What each panel asks: the page's settings, but for its own; and the answers that came, so that none is asked twice.
const KEPT = 12;                                         // answers
const sorted = (options) => Object.fromEntries(Object.entries(options).sort(([a], [b]) => (a < b ? -1 : 1)));
const read = (text) => (typeof text === "string" && text ? JSON.parse(text) : {});

export class Questions {
  constructor() {
    this.page = { picture: undefined, bands: "", names: {}, options: {} };
    this.answers = [];                                     // [question, value], the last ones
    this.lists = new Map();
    this.boxes = new Map();
    this.reading = new Set();                              // methods that read the class
    this.without = { layer: new Set(), target: new Set() };  // methods that take no layer, or read no class
    this.same = this.same.bind(this);
  }

  pictured(picture) {
    this.page.picture = (picture && picture.path) || "";
  }

  settings({ names, options }) {
    Object.assign(this.page, { names, options });
  }

  /** The values of the page's form: picture, model, layer, class, method, bands, options. */
  form([picture, model, layer, target, method, ...rest]) {
    const options = read(rest.pop()), bands = read(rest.pop());
    this.pictured(picture);
    this.settings({ names: { model: model || "", layer: layer || "", target: target || "", method: method || "" }, options: options.values || {} });
    this.page.bands = bands.text || "";
  }

  /** What a panel is to show. */
  of({ own, runner, classed, score }) {
    const { picture, bands, names, options } = this.page;
    const model = own.model ?? names.model, elsewhere = model !== names.model, method = own.method ?? names.method;
    const min_score = score ?? options.min_score;
    return { picture, bands, model, method, classed, runner,
      layer: own.layer ?? (elsewhere ? "" : names.layer), target: runner ? "" : own.target ?? names.target,
      options: method === names.method ? sorted({ ...options, min_score }) : { min_score }, strict: elsewhere ? { ...own } : null };
  }

  /** Whether two questions have the same answer. */
  same(one, other) {
    const key = ({ layer, target, runner, classed, ...rest }) => {
      const { method } = rest, gives_way = classed && !this.reading.has(method);
      const unread = !gives_way && this.without.target.has(method), bare = !gives_way && this.without.layer.has(method);
      return JSON.stringify([rest, gives_way, bare || layer, unread || target, unread || runner]);
    };
    return key(one) === key(other);
  }

  /** A question as the server reads it. */
  wire(panel, question) {
    const { own, runner, classed, score } = panel, { picture, bands, names } = this.page;
    const options = score === undefined ? this.page.options : { ...this.page.options, min_score: score };
    return { picture, page: { ...names, bands }, options, own: runner ? { ...own, target: undefined } : own, runner, classed,
      lists: !this.lists.has(this.list(question)), place: !this.boxes.has(this.place(question)) };
  }

  list({ model, layer }) {
    return JSON.stringify([model, layer]);
  }

  place({ picture, bands, model }) {
    return JSON.stringify([picture, bands, model]);
  }

  /** Lists, and what the network sees, come once. */
  learn(question, value) {
    if (value.lists) this.lists.set(this.list(question), value.lists);
    if (value.box) this.boxes.set(this.place(question), value.box);
    value.box = this.boxes.get(this.place(question));
    if (!value.names || value.names.method !== question.method) return;
    if (!value.takes_layer) this.without.layer.add(question.method);
    (value.reads_class ? this.reading : this.without.target).add(question.method);
  }

  listed(panel) {
    const question = this.of(panel), found = this.lists.get(this.list(question));
    if (found) return found;
    for (const [key, lists] of [...this.lists].reverse()) if (JSON.parse(key)[0] === question.model) return lists;
    const [any] = this.lists.values();
    return any && { model: any.model };
  }

  keep(question, value) {
    if (value.state !== "done") return;
    this.answers = [...this.answers.filter(([other]) => !this.same(other, question)), [question, value]].slice(-KEPT);
  }

  known(question) {
    const found = this.answers.find(([other]) => this.same(other, question));
    return found && found[1];
  }
}
