// A PDF of one page: images, text in Helvetica, boxes and lines. Units are those of figure.js.
const POINTS = 72 / 127, // points of a unit of 0.2 mm
  HEADER = "%PDF-1.4\n%\u00e2\u00e3\u00cf\u00d3\n", // the second line marks a binary file
  INK = /^#(..)(..)(..)$/;
// Characters of Helvetica from the space to "~", in thousandths of the font size
const WIDTHS = `278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556
278 278 584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667
944 667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 278
556 500 722 500 500 500 334 260 334 584`
  .split(/\s+/)
  .map(Number);
const DEFAULT_WIDTH = 556;
// Characters that the encoding of PDF fonts has at other positions than Unicode
const MOVED = { "€": 128, "…": 133, "‘": 145, "’": 146, "“": 147, "”": 148, "•": 149, "–": 150, "—": 151, "−": 150 };

const codes = (text) =>
  Array.from(text, (character) => {
    const code = character.codePointAt(0);
    return MOVED[character] ?? ((code >= 32 && code < 127) || (code > 160 && code < 256) ? code : null);
  });

const widthOf = (text, size) =>
  (size / 1000) * codes(text).reduce((sum, code) => sum + (WIDTHS[code - 32] ?? DEFAULT_WIDTH), 0);

const round = (number) => String(Math.round(1000 * number) / 1000);

async function deflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function jpeg(canvas) {
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  return new Uint8Array(await blob.arrayBuffer());
}

/** Split the pixels of a canvas into colors and opacity. */
function split(canvas) {
  const { width, height } = canvas,
    { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const colors = new Uint8Array(3 * width * height),
    opacity = new Uint8Array(width * height);
  for (let i = 0, p = 0; i < opacity.length; i++, p += 4) {
    colors.set(data.subarray(p, p + 3), 3 * i);
    opacity[i] = data[p + 3];
  }
  return { colors, opacity: opacity.some((value) => value < 255) ? opacity : null };
}

export class Pdf {
  /**
   * @param {number} width in units of 0.2 mm
   * @param {number} height
   */
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.objects = [];
    this.operators = [];
    this.images = [];
    this.shares = [];
  }

  /** Add an object that is complete once `content` is resolved; returns its reference. */
  add(dictionary, content = null) {
    this.objects.push({ dictionary, content });
    return `${this.objects.length} 0 R`;
  }

  color(hex, operator) {
    const parts = hex.match(INK).slice(1);
    return `${parts.map((part) => round(parseInt(part, 16) / 255)).join(" ")} ${operator}`;
  }

  opacity(share) {
    if (!this.shares.includes(share)) this.shares.push(share);
    return `/G${this.shares.indexOf(share)} gs`;
  }

  put(...operators) {
    this.operators.push("q", ...operators, "Q");
  }

  /** Draw a canvas; a `photo` is stored as JPEG. */
  image(canvas, x, y, width, height, opacity, photo = false) {
    const kind = `/Type /XObject /Subtype /Image /Width ${canvas.width} /Height ${canvas.height} /BitsPerComponent 8`,
      flate = "/Filter /FlateDecode",
      { colors, opacity: mask } = photo ? {} : split(canvas);
    const masked = mask ? ` /SMask ${this.add(`${kind} ${flate} /ColorSpace /DeviceGray`, deflate(mask))}` : "",
      filter = photo ? "/Filter /DCTDecode" : flate,
      content = photo ? jpeg(canvas) : deflate(colors);
    this.images.push(this.add(`${kind} ${filter} /ColorSpace /DeviceRGB${masked}`, content));
    const matrix = [width, 0, 0, height, x, this.height - y - height].map(round).join(" ");
    this.put(this.opacity(opacity), `${matrix} cm`, `/I${this.images.length - 1} Do`);
  }

  box(x, y, width, height, color) {
    const sides = [x, this.height - y - height, width, height].map(round).join(" ");
    this.put(this.color(color, "RG"), "2 w", `${sides} re S`);
  }

  /** Draw lines of points from 0 to 1 within this rectangle. */
  lines(lines, [x, y, width, height], { color, thick, opacity }) {
    const path = lines.map((line) =>
      line.map(([u, v], k) => `${round(x + u * width)} ${round(this.height - y - v * height)} ${k ? "l" : "m"}`),
    );
    const clip = `${[x, this.height - y - height, width, height].map(round).join(" ")} re W n`;
    this.put(clip, this.opacity(opacity), this.color(color, "RG"), `${round(thick)} w 1 j`, ...path.flat(), "S");
  }

  /** Write text, or return false if the font lacks a character. */
  text(text, x, y, { anchor, size, fill, strong }) {
    const found = codes(text);
    if (found.includes(null)) return false;
    const left = x - { start: 0, middle: 0.5, end: 1 }[anchor] * widthOf(text, size);
    const hex = found.map((code) => code.toString(16).padStart(2, "0")).join("");
    this.put(
      this.color(fill, "rg"),
      `BT /F${strong ? 1 : 0} ${size} Tf ${round(left)} ${round(this.height - y)} Td <${hex}> Tj ET`,
    );
    return true;
  }

  /** @returns {Promise<Blob>} */
  async finish() {
    const font = (name) => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
    const named = (prefix, values) => values.map((value, k) => `/${prefix}${k} ${value}`).join(" ");
    const states = this.shares.map((share) => `<< /ca ${round(share)} /CA ${round(share)} >>`);
    const resources =
      `/Font << ${named("F", ["Helvetica", "Helvetica-Bold"].map(font))} >> ` +
      `/XObject << ${named("I", this.images)} >> ` +
      `/ExtGState << ${named("G", states)} >>`;
    const drawing = `${round(POINTS)} 0 0 ${round(POINTS)} 0 0 cm\n${this.operators.join("\n")}\n`;
    const content = this.add("/Filter /FlateDecode", deflate(new TextEncoder().encode(drawing)));
    const pages = this.objects.length + 2,
      box = `0 0 ${round(POINTS * this.width)} ${round(POINTS * this.height)}`;
    const page = this.add(
      `/Type /Page /Parent ${pages} 0 R /MediaBox [${box}] /Contents ${content} /Resources << ${resources} >>`,
    );
    const tree = this.add(`/Type /Pages /Kids [${page}] /Count 1`);
    return this.write(this.add(`/Type /Catalog /Pages ${tree}`));
  }

  async write(catalog) {
    const parts = [Uint8Array.from(HEADER, (character) => character.charCodeAt(0))],
      starts = [];
    const ascii = new TextEncoder();
    let size = parts[0].length;
    const push = (part) => {
      const bytes = typeof part === "string" ? ascii.encode(part) : part;
      parts.push(bytes);
      size += bytes.length;
    };
    for (const [k, { dictionary, content }] of this.objects.entries()) {
      const bytes = await content;
      starts.push(size);
      push(`${k + 1} 0 obj\n<< ${dictionary}${bytes ? ` /Length ${bytes.length}` : ""} >>\n`);
      if (bytes) for (const part of ["stream\n", bytes, "\nendstream\n"]) push(part);
      push("endobj\n");
    }
    const start = size,
      count = this.objects.length + 1;
    push(`xref\n0 ${count}\n0000000000 65535 f \n`);
    for (const at of starts) push(`${String(at).padStart(10, "0")} 00000 n \n`);
    push(`trailer\n<< /Size ${count} /Root ${catalog} >>\nstartxref\n${start}\n%%EOF\n`);
    return new Blob(parts, { type: "application/pdf" });
  }
}
