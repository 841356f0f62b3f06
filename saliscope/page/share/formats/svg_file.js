// An SVG file, with numbers of at most two decimals.
const SPACE = "http://www.w3.org/2000/svg";

export const short = (value) => String(Math.round(100 * value) / 100);

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined) node.setAttribute(name, typeof value === "number" ? short(value) : value);
}

export class SvgFile {
  /** @param {Record<string, any>} attributes of the root */
  constructor(attributes) {
    this.root = document.createElementNS(SPACE, "svg");
    set(this.root, attributes);
  }

  add(tag, attributes, text) {
    const node = document.createElementNS(SPACE, tag);
    set(node, attributes);
    if (text !== undefined) node.textContent = text;
    this.root.append(node);
  }

  finish() {
    const content = new XMLSerializer().serializeToString(this.root);
    return new Blob(['<?xml version="1.0" encoding="UTF-8"?>\n', content, "\n"], { type: "image/svg+xml" });
  }
}
