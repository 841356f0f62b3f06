// Maps that were shown, by their question: coming back to one finds it there, with the partial maps of its run.
const MOST = 48;                                         // questions
const BYTES = 96 * 2 ** 20;                              // of all of them, as text
const PARTIALS = 24;                                     // of one run, evenly spread
const PARTIAL_BYTES = 12 * 2 ** 20;

const size = (value) => value.map.b64.length;

export class Kept {
  constructor() {
    this.entries = new Map();                            // the one that was used last comes last
  }

  /** {value, partials} of a question, made where it is new. */
  entry(key) {
    const entry = this.entries.get(key) || { value: null, partials: [] };
    this.entries.delete(key);
    this.entries.set(key, entry);
    return entry;
  }

  /** A finished map, or the best one of a run that was stopped. */
  find(key) {
    return (key && this.entries.has(key) && this.entry(key).value) || null;
  }

  /** Keep a final map. */
  put(value) {
    if (!value.key || !value.map) return;
    const entry = this.entry(value.key);
    if (entry.value && (entry.value.share ?? 1) > (value.share ?? 1)) return;      // a later run was stopped
    entry.value = value;
    for (const { value: other } of this.entries.values()) {      // one text for all maps of a picture
      if (other && other !== value && other.crop && value.crop && other.crop.src === value.crop.src) value.crop = other.crop;
    }
    this.trim();
  }

  /** Keep a partial map; those of a former run of the question go. */
  partial(value) {
    if (!value.key) return;
    const { partials } = this.entry(value.key), last = partials.at(-1);
    if (last && last.share >= value.share) partials.length = 0;
    partials.push({ share: value.share, seconds: value.seconds, map: value.map });
    while (partials.length > PARTIALS || (partials.length > 2 && partials.reduce((sum, each) => sum + size(each), 0) > PARTIAL_BYTES)) thin(partials);
    this.trim();
  }

  trim() {
    const pictures = new Set();
    let bytes = 0;
    for (const { value, partials } of this.entries.values()) {
      for (const each of partials) bytes += size(each);
      if (!value) continue;
      bytes += size(value) + (value.things?.plane?.b64.length || 0);
      if (value.crop) pictures.add(value.crop);
    }
    for (const each of pictures) bytes += each.src.length;
    const oldest = this.entries.keys().next().value;
    if ((this.entries.size <= MOST && bytes <= BYTES) || this.entries.size < 2) return;
    this.entries.delete(oldest);
    this.trim();
  }
}

/** Drop the one between whose neighbours the least is missed; first and last stay. */
function thin(partials) {
  let least = Infinity, at = 1;
  for (let k = 1; k < partials.length - 1; k++) {
    const gap = partials[k + 1].share - partials[k - 1].share;
    if (gap < least) [least, at] = [gap, k];
  }
  partials.splice(at, 1);
}
