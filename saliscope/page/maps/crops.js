// The crops of the last answers. The server sends the image of a crop once; later answers have only its key.
const MAX_ENTRIES = 4;

const sources = new Map(); // data URLs by key; the most recently used one is last

/** Return the keys of the crops that the page holds. */
export const heldCrops = () => [...sources.keys()];

/**
 * Return a crop with its image, which is remembered.
 * @param {?{key?: string, src?: string}} crop
 */
export function completeCrop(crop) {
  if (!crop?.key) return crop;
  const src = crop.src ?? sources.get(crop.key);
  sources.delete(crop.key);
  sources.set(crop.key, src);
  for (const key of [...sources.keys()].slice(0, -MAX_ENTRIES)) sources.delete(key);
  return { ...crop, src };
}
