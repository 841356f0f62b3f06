// Creates a zip archive of a few files without compression: maps and images are already compressed, or small.
const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

export function crc(bytes) {
  let sum = 0xffffffff;
  for (let i = 0; i < bytes.length; i++) sum = TABLE[(sum ^ bytes[i]) & 255] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

/** Pack little-endian numbers: 2 bytes for those in brackets, 4 bytes for the others. */
function numbers(...values) {
  const view = new DataView(new ArrayBuffer(values.reduce((sum, value) => sum + (Array.isArray(value) ? 2 : 4), 0)));
  let at = 0;
  for (const value of values) {
    if (Array.isArray(value)) view.setUint16(at, value[0], true);
    else view.setUint32(at, value, true);
    at += Array.isArray(value) ? 2 : 4;
  }
  return new Uint8Array(view.buffer);
}

/**
 * Create a zip of files by name, in this order.
 * @param {Record<string, BlobPart>} files
 * @returns {Promise<Blob>}
 */
export async function zip(files) {
  const now = new Date(),
    text = new TextEncoder(),
    parts = [],
    index = [];
  const time = (now.getHours() << 11) | (now.getMinutes() << 5) | (now.getSeconds() >> 1);
  const date = ((now.getFullYear() - 1980) << 9) | ((now.getMonth() + 1) << 5) | now.getDate();
  let at = 0;
  for (const [path, content] of Object.entries(files)) {
    const bytes = new Uint8Array(await new Blob([content]).arrayBuffer()),
      { length } = bytes,
      name = text.encode(path);
    const about = numbers([20], [0x800], [0], [time], [date], crc(bytes), length, length, [name.length], [0]);
    parts.push(numbers(0x04034b50), about, name, bytes);
    index.push(numbers(0x02014b50, [20]), about, numbers([0], [0], [0], 0, at), name);
    at += 4 + about.length + name.length + length;
  }
  const size = index.reduce((sum, part) => sum + part.length, 0),
    count = Object.keys(files).length;
  return new Blob([...parts, ...index, numbers(0x06054b50, [0], [0], [count], [count], size, at, [0])], {
    type: "application/zip",
  });
}
