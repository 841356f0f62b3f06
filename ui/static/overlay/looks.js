// How the large map is looked at, as parameters of the address: what is shown, opacity, colours, limits, smoothing, signs.
import { keep } from "../page/address.js";
import { NAMES } from "../drawing/colours.js";

const PINNED = "pinned";                                 // behind the two limits

/** Two limits, and whether they are pinned; null for anything else. */
function range(text) {
  const [low, high, pin] = (text || "").split(","), both = [low, high].map((each) => (each ? Number(each) : NaN));
  return both.every(Number.isFinite) && both[1] > both[0] ? { both, pinned: pin === PINNED } : null;
}

export class Looks {
  constructor(view) {
    Object.assign(this, { view, given: null });
    this.changed = keep(["show", "opacity", "colours", "limits", "smooth", "signed"], () => this.read(), (values, coming) => this.write(values, coming));
  }

  /** Whether a map is drawn with its signs unless the visitor says otherwise. */
  usual(value) {
    return !(value && value.map && value.map.by_size) || this.view.tools.tint.value === "signed";
  }

  read() {
    const { tools, limits, shown, value } = this.view, { opacity, tint, smooth, signed } = tools;
    const own = limits.range ? [...limits.range, ...(limits.pin ? [PINNED] : [])].join() : "";
    const sign = signed.input.checked === this.usual(value) ? "" : String(Number(signed.input.checked));
    return { show: shown.chosen === "overlay" ? "" : shown.chosen, opacity: opacity.value === "100" ? "" : opacity.value,
      colours: tint.value === "auto" ? "" : tint.value, smooth: smooth.input.checked ? "" : "0",
      limits: this.given ? this.given.limits : own, signed: this.given ? this.given.signed : sign };
  }

  /** `coming`: the answer that the limits are meant for is still to come. */
  write(values, coming) {
    const { tools, shown } = this.view, opacity = Number(values.opacity || NaN);
    tools.opacity.value = opacity >= 0 && opacity <= 100 ? opacity : 100;
    tools.tint.value = NAMES.some(([name]) => name === values.colours) ? values.colours : "auto";
    tools.smooth.input.checked = values.smooth !== "0";
    this.given = values;
    shown.choose(values.show || "overlay");
    if (!coming) this.next(this.view.value);
  }

  /** Before an answer is drawn: limits and signs that were meant for it. */
  next(value) {
    const { given, view: { limits, tools } } = this;
    if (!given) return;
    const own = range(given.limits);
    tools.signed.input.checked = ["0", "1"].includes(given.signed) ? given.signed === "1" : this.usual(value);
    limits.unit = (value && value.words && value.words.unit) || "";
    limits.set(own && own.both, Boolean(own && own.pinned));
    if (value && value.state !== "partial") this.given = null;
  }
}
