// The controls above the tiles; none of them needs a request but the measures and the file of all values.
import { make, short } from "../wire.js";

/** {root, legend, chosen, fit, sort, busy}; `acts` are called after a change. */
export function toolbar(terms, acts) {
  const label = (text, ...inputs) => make("label", {}, make("span", { text }), ...inputs);
  const button = (text, onclick) => make("button", { type: "button", class: "hl-button", text, onclick, disabled: true });
  const options = terms.sorts.map(([value, text]) => make("option", { value, text }));
  const order = make("select", { name: "sort", onchange: () => { say(); acts.order(); } }, ...options);
  const range = make("select", { name: "range", title: terms.range_title, onchange: acts.colour },
    make("option", { value: "own", text: terms.own }), make("option", { value: "shared", text: terms.shared }));
  const smooth = make("input", { type: "checkbox", name: "smooth", onchange: acts.colour });
  const hide = make("input", { type: "checkbox", name: "dead", disabled: true, onchange: acts.order });
  const dead = make("span", { text: terms.dead });
  const [png, npy, stop] = [button(terms.png, acts.png), button(terms.npy, acts.npy), button(terms.stop, acts.stop)];
  const ends = [make("span"), make("span")];
  const legend = make("span", { class: "hl-channels-legend" }, ends[0], make("i"), ends[1]);
  const root = make("div", { class: "hl-channels-tools" }, label(terms.sort, order), stop, label(terms.range, range),
    make("label", { class: "hl-tick" }, smooth, make("span", { text: terms.smooth })),
    make("label", { class: "hl-tick", title: terms.dead_title }, hide, dead),
    make("div", { class: "hl-channels-saves", role: "group", "aria-label": terms.save }, make("span", { text: terms.save }), png, npy));
  stop.hidden = true;
  stop.disabled = false;
  const say = () => { order.title = terms.sort_titles[order.value]; };
  say();

  return {
    root,
    legend,
    get chosen() {
      return { sort: order.value, shared: range.value === "shared", smooth: smooth.checked, hide: hide.checked };
    },
    /** Choose an order without asking for it. */
    sort(name) {
      if (name) order.value = name;
      say();
    },
    busy(on) {
      png.disabled = on;
    },
    /** Bring the controls in line with the sheet that is shown. */
    fit(sheet, measuring) {
      for (const each of [png, npy]) each.disabled = !sheet;
      stop.hidden = measuring !== "effect";
      const count = sheet ? sheet.dead.length : 0, one = Boolean(sheet) && !sheet.figures.sparsity;
      dead.textContent = count ? `${terms.dead} (${count.toLocaleString("en")})` : terms.dead;
      hide.disabled = !count || count === sheet.total;
      if (hide.disabled) hide.checked = false;
      const sparse = options.find((option) => option.value === "sparsity");
      sparse.disabled = one;
      sparse.title = one ? terms.one_cell : "";
      if (one && order.value === "sparsity") order.value = "mean";
      say();
      const signed = Boolean(sheet) && sheet.range[0] < 0, shared = range.value === "shared";
      legend.hidden = !sheet;
      legend.dataset.signed = String(signed);
      const [low, high] = sheet ? sheet.range : [0, 0];
      ends[0].textContent = shared ? short(low) : signed ? terms.own_signed[0] : terms.own_ends[0];
      ends[1].textContent = shared ? `≥ ${short(high)}` : signed ? terms.own_signed[2] : terms.own_ends[1];
    },
  };
}
