// Controls above the tiles. Only the measures and the file of all values need a request.
import { change, state } from "../store.js";
import { makeLabel, makeSelect, makeTick } from "../shared/elements.js";
import { fill, make, makeButton, formatValue } from "../wire.js";

export class Toolbar {
  /**
   * @param {Record<string, any>} terms
   * @param {Record<"order" | "show" | "color" | "png" | "npy" | "stop", () => void>} actions called after changes and clicks
   */
  constructor(terms, actions) {
    this.terms = terms;
    const onchange = () => {
      this.updateTitle();
      actions.order();
    };
    this.search = make("input", { type: "search", name: "search", oninput: actions.order });
    this.show = makeSelect({ name: "show", onchange: actions.show }, terms.shows);
    this.shows = makeLabel(terms.show, this.show);
    this.shows.hidden = true;
    this.order = makeSelect({ name: "sort", onchange }, terms.sorts);
    this.options = [...this.order.options];
    const ranges = ["own", "shared"].map((name) => [name, terms[name]]);
    this.range = makeSelect({ name: "range", title: terms.range_title, onchange: actions.color }, ranges);
    this.smooth = makeTick(terms.smooth, { name: "smooth", onchange: actions.color });
    const hide = { name: "dead", disabled: true, onchange: actions.order };
    this.hide = makeTick(terms.dead, hide, { title: terms.dead_title });
    this.png = makeButton(terms.png, actions.png, { disabled: true });
    this.npy = makeButton(terms.npy, actions.npy, { disabled: true });
    this.stop = makeButton(terms.stop, actions.stop, { hidden: true, "aria-label": terms.stop_name });
    const toggle = () => change("channels", { selecting: !state.channels.selecting });
    const off = { "aria-pressed": "false", disabled: true };
    this.select = makeButton(terms.select, toggle, { ...off, title: terms.select_title });
    this.ends = [make("span"), make("span")];
    this.legend = make("span", { class: "hl-channels-legend" }, this.ends[0], make("i"), this.ends[1]);
    this.root = this.arrange();
    this.updateTitle();
  }

  arrange() {
    const { terms } = this,
      saves = { class: "hl-channels-saves", role: "group", "aria-label": terms.save };
    return make(
      "div",
      { class: "hl-channels-tools" },
      make("div", { class: "hl-channels-find" }, makeLabel(terms.search, this.search), this.shows),
      makeLabel(terms.sort, this.order),
      this.stop,
      makeLabel(terms.range, this.range),
      this.smooth.root,
      this.hide.root,
      this.select,
      make("div", saves, make("span", { text: terms.save }), this.png, this.npy),
    );
  }

  updateTitle() {
    this.order.title = this.terms.sort_titles[this.order.value];
    this.show.title = this.terms.show_titles[this.show.value];
  }

  get chosen() {
    const { order, range, smooth, hide, show, search } = this;
    return {
      sort: order.value,
      shared: range.value === "shared",
      smooth: smooth.input.checked,
      hide: hide.input.checked,
      show: show.value,
      word: search.value.trim(),
    };
  }

  /** Whether an address can have this order; that by a cell needs a click. */
  canRestore(name) {
    return name !== "here" && this.options.some(({ value }) => value === name);
  }

  /** The selected order for the address, empty for the default. */
  get sortInAddress() {
    const { value } = this.order;
    return value !== this.options[0].value && this.canRestore(value) ? value : "";
  }

  /** Select a sort order without requesting it. */
  sort(name) {
    if (name) this.order.value = name;
    this.updateTitle();
  }

  /** Show whether a click selects a channel, and how many are selected. */
  markSelection({ selecting, selected }) {
    const { terms, select } = this;
    select.setAttribute("aria-pressed", String(selecting));
    select.textContent = selected.length
      ? fill(terms.selected, { count: selected.length.toLocaleString("en") })
      : terms.select;
  }

  /** Update the controls for the current sheet. */
  fit(sheet, measuring) {
    const { terms, order } = this,
      { input: hide, root } = this.hide;
    for (const each of [this.png, this.npy, this.select]) each.disabled = !sheet;
    this.stop.hidden = measuring !== "effect";
    const count = sheet ? sheet.dead.length : 0;
    root.lastElementChild.textContent = count ? `${terms.dead} (${count.toLocaleString("en")})` : terms.dead;
    hide.disabled = !count || count === sheet.total;
    if (hide.disabled) hide.checked = false;
    const one = Boolean(sheet) && !sheet.figures.sparsity,
      sparse = this.options.find((option) => option.value === "sparsity");
    sparse.disabled = one;
    sparse.title = one ? terms.one_cell : "";
    if (one && order.value === "sparsity") order.value = "mean";
    this.fitCell();
    this.fitImages(sheet?.units);
    this.updateTitle();
    this.updateLegend(sheet);
  }

  /** A cell must be clicked before the channels are sorted by it. */
  fitCell() {
    const here = this.options.find((option) => option.value === "here");
    here.disabled = !state.channels.here;
    here.title = here.disabled ? this.terms.no_cell : "";
    if (here.disabled && this.order.value === "here") this.order.value = "mean";
  }

  /** Offer the images that the index of the layer has, and the search by name if it has names. */
  fitImages(units) {
    const { show, shows, search, terms } = this;
    for (const option of show.options) option.hidden = option.value !== "response" && !units?.sprites[option.value];
    if (show.selectedOptions[0].hidden) show.value = "response";
    shows.hidden = !units || !Object.keys(units.sprites).length;
    search.title = units?.names.some(Boolean) ? terms.search_title : terms.search_number;
    this.range.disabled = this.smooth.input.disabled = show.value !== "response";
  }

  updateLegend(sheet) {
    const { terms, legend, ends } = this,
      [low, high] = sheet ? sheet.range : [0, 0],
      signed = low < 0;
    legend.style.visibility = sheet && this.chosen.show === "response" ? "" : "hidden";
    legend.dataset.signed = String(signed);
    const own = signed ? [terms.own_signed[0], terms.own_signed[2]] : terms.own_ends;
    const texts = this.chosen.shared ? [formatValue(low), `≥ ${formatValue(high)}`] : own;
    ends.forEach((end, k) => {
      end.textContent = texts[k];
    });
  }
}
