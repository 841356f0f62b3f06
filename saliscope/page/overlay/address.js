// Display settings of the large map as address parameters: mode, opacity, colors, limits, smoothing, signs.
import { bindParameters } from "../shared/address.js";

const PINNED = "pinned"; // follows the two limits

/** Parse two limits, and whether they are pinned; null if invalid. */
function range(text) {
  const [low, high, pin] = (text || "").split(","),
    both = [low, high].map((each) => (each ? Number(each) : NaN));
  return both.every(Number.isFinite) && both[1] > both[0] ? { both, pinned: pin === PINNED } : null;
}

export class AddressBinding {
  constructor(view) {
    this.view = view;
    this.pending = null;
    this.changed = bindParameters(
      ["show", "opacity", "colors", "limits", "smooth", "signed"],
      () => this.read(),
      (values, coming) => this.write(values, coming),
    );
  }

  /** Check whether a map is drawn with signs by default. */
  defaultSigned(value) {
    return !(value && value.map && value.map.by_size) || this.view.tools.tint.value === "signed";
  }

  read() {
    const { tools, limits, display, value } = this.view,
      { opacity, tint, smooth, signed } = tools;
    const range = limits.applied(); // limits of another unit would be applied to this one by the link
    const own = range ? [...range, ...(limits.pin ? [PINNED] : [])].join() : "";
    const sign = signed.input.checked === this.defaultSigned(value) ? "" : String(Number(signed.input.checked));
    return {
      show: display.chosen === "overlay" ? "" : display.chosen,
      opacity: opacity.value === "100" ? "" : opacity.value,
      colors: tint.value === "auto" ? "" : tint.value,
      smooth: smooth.input.checked ? "" : "0",
      limits: this.pending ? this.pending.limits : own,
      signed: this.pending ? this.pending.signed : sign,
    };
  }

  /** `coming`: the answer that the limits belong to has not arrived yet. */
  write(values, coming) {
    const { tools, display } = this.view,
      opacity = Number(values.opacity || NaN);
    tools.opacity.value = opacity >= 0 && opacity <= 100 ? opacity : 100;
    tools.tint.value = values.colors in tools.terms.color_maps ? values.colors : "auto";
    tools.smooth.input.checked = values.smooth !== "0";
    this.pending = values;
    display.choose(values.show || "overlay");
    if (!coming) this.next(this.view.value);
  }

  /** Apply limits and signs that belong to an answer before it is drawn. */
  next(value) {
    const { pending } = this,
      { limits, tools } = this.view;
    if (!pending) return;
    const own = range(pending.limits);
    tools.signed.input.checked = ["0", "1"].includes(pending.signed)
      ? pending.signed === "1"
      : this.defaultSigned(value);
    limits.unit = (value && value.words && value.words.unit) || "";
    limits.set(own && own.both, Boolean(own && own.pinned));
    if (value && value.state !== "partial") this.pending = null;
  }
}
