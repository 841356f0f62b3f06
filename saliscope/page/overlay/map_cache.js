// A cache of maps by request: returning to a request shows its map again, with the partial maps of its run.
const MAX_ENTRIES = 48; // requests
const MAX_BYTES = 96 * 2 ** 20; // total size as text
const MAX_PARTIALS = 24; // per run, evenly spaced
const MAX_PARTIAL_BYTES = 12 * 2 ** 20;

const size = (value) => value.map.b64.length;

export class MapCache {
  constructor() {
    this.entries = new Map(); // the most recently used entry is last
  }

  /** Return {value, partials} of a request; created if missing. */
  entry(key) {
    const entry = this.entries.get(key) || { value: null, partials: [] };
    this.entries.delete(key);
    this.entries.set(key, entry);
    return entry;
  }

  /** Return a finished map, or the best one of a stopped run. */
  find(key) {
    return (key && this.entries.has(key) && this.entry(key).value) || null;
  }

  /** Store a final map. */
  put(value) {
    if (!value.key || !value.map) return;
    const entry = this.entry(value.key);
    if (entry.value && (entry.value.share ?? 1) > (value.share ?? 1)) return; // a later run was stopped
    entry.value = value;
    this.trim();
  }

  /** Store a partial map; those of an earlier run of the request are removed. */
  partial(value) {
    if (!value.key) return;
    const { partials } = this.entry(value.key),
      last = partials.at(-1);
    if (last && last.share >= value.share) partials.length = 0;
    partials.push({ share: value.share, seconds: value.seconds, map: value.map });
    while (
      partials.length > MAX_PARTIALS ||
      (partials.length > 2 && partials.reduce((sum, each) => sum + size(each), 0) > MAX_PARTIAL_BYTES)
    )
      thin(partials);
    this.trim();
  }

  trim() {
    const crops = new Set();
    let bytes = 0;
    for (const { value, partials } of this.entries.values()) {
      for (const each of partials) bytes += size(each);
      if (!value) continue;
      bytes += size(value) + (value.things?.plane?.b64.length || 0);
      if (value.crop) crops.add(value.crop.src); // one string, see crops.js
    }
    for (const src of crops) bytes += src.length;
    const oldest = this.entries.keys().next().value;
    if ((this.entries.size <= MAX_ENTRIES && bytes <= MAX_BYTES) || this.entries.size < 2) return;
    this.entries.delete(oldest);
    this.trim();
  }
}

/** Remove the map with the smallest gap between its neighbors; the first and last one stay. */
function thin(partials) {
  let least = Infinity,
    at = 1;
  for (let k = 1; k < partials.length - 1; k++) {
    const gap = partials[k + 1].share - partials[k - 1].share;
    if (gap < least) [least, at] = [gap, k];
  }
  partials.splice(at, 1);
}
