// Reads the images of a zip archive in the browser, for the list of a batch. The server reads the archive by itself.
const END = 0x06054b50,
  ENTRY = 0x02014b50,
  TAIL = 65557; // bytes: the end record with the longest comment
const DEFLATED = 8,
  ENCRYPTED = 1,
  UTF8 = 0x800;
const IMAGE = /\.(jpe|jpe?g|jfif|png|webp|gif|bmp|tiff?|avif)$/i; // IMAGE_SUFFIXES of the server

const viewOf = async (blob) => new DataView(await blob.arrayBuffer());

/** Return the position of the list of files, and their number; null if this is not a zip archive. */
async function findList(blob) {
  const start = Math.max(0, blob.size - TAIL),
    tail = await viewOf(blob.slice(start));
  for (let at = tail.byteLength - 22; at >= 0; at--)
    if (tail.getUint32(at, true) === END)
      return {
        count: tail.getUint16(at + 10, true),
        size: tail.getUint32(at + 12, true),
        at: tail.getUint32(at + 16, true),
      };
  return null;
}

/** Return the wanted entries: images that are not in hidden folders or resource forks of macOS. */
function readEntries(list, count) {
  const entries = [];
  for (let at = 0, k = 0; k < count && at + 46 <= list.byteLength && list.getUint32(at, true) === ENTRY; k++) {
    const [flags, method] = [list.getUint16(at + 8, true), list.getUint16(at + 10, true)],
      [packed, size] = [list.getUint32(at + 20, true), list.getUint32(at + 24, true)],
      [name, extra, comment] = [28, 30, 32].map((field) => list.getUint16(at + field, true)),
      letters = new Uint8Array(list.buffer, list.byteOffset + at + 46, Math.min(name, list.byteLength - at - 46));
    const path = new TextDecoder(flags & UTF8 ? "utf-8" : "latin1").decode(letters);
    const isHidden = path.split("/").some((part) => part.startsWith(".") || part.startsWith("__MACOSX"));
    if (IMAGE.test(path) && !isHidden && !(flags & ENCRYPTED) && (method === 0 || method === DEFLATED))
      entries.push({ path, method, packed, size, at: list.getUint32(at + 42, true) });
    at += 46 + name + extra + comment;
  }
  return entries;
}

/** Return the file of an entry. */
async function extract(blob, { path, method, packed, size, at }) {
  const head = await viewOf(blob.slice(at, at + 30)),
    start = at + 30 + head.getUint16(26, true) + head.getUint16(28, true),
    content = blob.slice(start, start + packed);
  const name = path.split("/").at(-1);
  if (method !== DEFLATED) return new File([content], name);
  const reader = content.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader(),
    parts = [];
  for (let left = size, part = await reader.read(); !part.done; part = await reader.read()) {
    left -= part.value.length;
    if (left < 0) throw new RangeError(name);
    parts.push(part.value);
  }
  return new File(parts, name);
}

/**
 * Return the images in a zip archive in its order.
 * @param {Blob} blob
 * @param {{count: number, bytes: number}} limits number of images, and bytes of all together
 * @returns {Promise<File[]>} no images for another file, and above the limits
 */
export async function readImages(blob, { count, bytes }) {
  try {
    const list = await findList(blob);
    if (!list) return [];
    const entries = readEntries(await viewOf(blob.slice(list.at, list.at + list.size)), list.count);
    if (entries.length > count || entries.reduce((sum, { size }) => sum + size, 0) > bytes) return [];
    return await Promise.all(entries.map((entry) => extract(blob, entry)));
  } catch {
    return []; // damaged: the server reports it
  }
}
