// Reads what engine/packing.py wrote; makes elements, whose words only ever go in as text.

// Gradio copies all that a component holds at each of its updates, by a call of structuredClone for every number and
// string; a primitive is its own copy. With the 1,000 classes of the lists this saves 0.1 s of every answer.
const clone = window.structuredClone;
window.structuredClone = (value, ...options) =>
  ["object", "function", "symbol"].includes(typeof value) ? clone(value, ...options) : value;

/** Mount module `name`; its `props.value` is the parsed JSON, and what it sets there goes back as JSON. */
export async function start(name, element, props, trigger, watch) {
  let raw, value = null;
  const open = new Proxy(props, {
    get(target, key) {
      if (key !== "value") return target[key];
      if (target.value !== raw) {
        raw = target.value;
        value = typeof raw === "string" && raw ? JSON.parse(raw) : null;
      }
      return value;
    },
    set(target, key, given) {
      target[key] = key === "value" ? JSON.stringify(given) : given;
      return true;
    },
  });
  const module = await import(new URL(`${name}.js`, import.meta.url));
  module.mount(element, open, (event, data) => {
    // Before the server hears of it: see address.js.
    if (event === "select") element.dispatchEvent(new CustomEvent("hl-select", { bubbles: true, detail: data }));
    trigger(event, data);
  }, watch);
}

/** Bytes of a base64 string; the plain loop is 25 times faster than Uint8Array.from with a callback. */
export function bytes(b64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(b64);
  const raw = atob(b64);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

function halves(raw) {
  const out = new Float32Array(raw.length);
  for (let i = 0; i < raw.length; i++) {
    const h = raw[i], e = (h >> 10) & 31, f = h & 1023;
    const size = e === 0 ? f * 2 ** -24 : e === 31 ? (f ? NaN : Infinity) : (1 + f / 1024) * 2 ** (e - 15);
    out[i] = h & 32768 ? -size : size;
  }
  return out;
}

/** Float32Array of a packed array: {b64, dtype, scale}. */
export function floats(packed) {
  const raw = bytes(packed.b64);
  if (packed.dtype === "float16") {
    const out = halves(new Uint16Array(raw.buffer));
    if (packed.scale && packed.scale !== 1) for (let i = 0; i < out.length; i++) out[i] *= packed.scale;
    return out;
  }
  return new Float32Array(raw.buffer);
}

/** An element with attributes; `text` becomes text, never markup. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** A number in few characters, with its sign: 0.0213, 1.2e-7, 12,300. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? size.toExponential(2) : String(Number(size.toPrecision(4)));
  return (value < 0 ? "−" : "") + text;
}

/** Mark the component with the id of the answer that it shows and the milliseconds that drawing took; tests wait for it. */
export function painted(element, id, since) {
  const host = element.closest("[id^='hl-']") || element;
  host.dataset.id = id ?? "";
  host.dataset.ms = (performance.now() - since).toFixed(1);
}

/** Run `draw` now and at every change of the named props: a component in a tab may be mounted after its value came. */
export function follow(props, watch, names, draw) {
  watch(names, draw);
  draw();
}

/** Draw the items of the value, each by `row`, whenever they change. */
export function listed(element, props, watch, row) {
  const root = element.firstElementChild;
  follow(props, watch, ["value"], () => {
    const since = performance.now();
    root.replaceChildren(...((props.value && props.value.items) || []).map(row));
    painted(element, props.value && props.value.id, since);
  });
}

/** Download a blob as a file. */
export function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A NumPy file (format 1.0) of float32 values. */
export function npy(values, shape) {
  const form = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  let head = `{'descr': '<f4', 'fortran_order': False, 'shape': ${form}, }`;
  head += " ".repeat((64 - ((10 + head.length + 1) % 64)) % 64) + "\n";
  const start = new Uint8Array(10 + head.length);
  start.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, head.length & 255, head.length >> 8]);
  for (let i = 0; i < head.length; i++) start[10 + i] = head.charCodeAt(i);
  return new Blob([start, new Float32Array(values)], { type: "application/octet-stream" });
}
