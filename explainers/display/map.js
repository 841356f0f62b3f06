// Generated from saliscope/page: run `python -m tests.project.test_notebook_script`.
(() => {
function bytes(b64) {
if (Uint8Array.fromBase64) return Uint8Array.fromBase64(b64);
const raw = atob(b64);
const out = new Uint8Array(raw.length);
for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
return out;
}
function decodeFloat16(raw) {
const out = new Float32Array(raw.length);
for (let i = 0; i < raw.length; i++) {
const h = raw[i],
e = (h >> 10) & 31,
f = h & 1023;
const size = e === 0 ? f * 2 ** -24 : e === 31 ? (f ? NaN : Infinity) : (1 + f / 1024) * 2 ** (e - 15);
out[i] = h & 32768 ? -size : size;
}
return out;
}
function floats(packed) {
const raw = bytes(packed.b64);
if (packed.dtype === "float16") {
const out = decodeFloat16(new Uint16Array(raw.buffer));
if (packed.scale && packed.scale !== 1) for (let i = 0; i < out.length; i++) out[i] *= packed.scale;
return out;
}
return new Float32Array(raw.buffer);
}
function make(tag, attributes = {}, ...children) {
const node = document.createElement(tag);
if (tag === "button") node.setAttribute("type", tag);
setAttributes(node, attributes);
node.append(...children);
return node;
}
function setAttributes(node, attributes) {
for (const [name, value] of Object.entries(attributes)) {
if (value === undefined || value === null || value === false) continue;
if (name === "text") node.textContent = value;
else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
else node.setAttribute(name, value === true ? "" : value);
}
}
function fill(text, values) {
return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}
function formatValue(value) {
if (value === null || value === undefined || Number.isNaN(value)) return "NaN";
if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
const size = Math.abs(value);
const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? size.toExponential(2) : String(Number(size.toPrecision(4)));
return (value < 0 ? "−" : "") + text;
}
function formatExact(value) {
const size = Math.abs(value);
return size && (size < 1e-3 || size >= 1e6) ? value.toExponential() : String(value);
}
function describeCell(terms, { values, h, w }, row, column, unit) {
const value = `${formatValue(values[row * w + column])}${unit ? ` ${unit}` : ""}`;
return fill(terms.cell, { value, row: row + 1, column: column + 1, h, w });
}
function slope(before, after) {
if (!(before * after > 0)) return 0;
const mean = (before + after) / 2,
steepest = 3 * Math.min(Math.abs(before), Math.abs(after));
return Math.max(-steepest, Math.min(steepest, mean));
}
function resampleRow(from, start, step, cells, to, at, stride, side, smooth) {
const value = (i) => from[start + step * Math.min(cells - 1, Math.max(0, i))];
for (let k = 0; k < side; k++) {
let v;
if (side === cells) v = value(k);
else if (!smooth) v = value(Math.floor(((2 * k + 1) * cells) / (2 * side)));
else if (side < cells) {
const first = Math.floor((k * cells) / side),
last = Math.ceil(((k + 1) * cells) / side);
v = 0;
for (let i = first; i < last; i++) v += value(i);
v /= last - first;
} else {
const position = ((k + 0.5) * cells) / side - 0.5,
i = Math.floor(position),
t = position - i;
const b = value(i),
c = value(i + 1),
rise = c - b;
let a = value(i - 1),
d = value(i + 2);
if (a !== a) a = b;
if (d !== d) d = c;
const s = slope(b - a, rise),
e = slope(rise, d - c);
v = b + t * (s + t * (3 * rise - 2 * s - e + t * (s + e - 2 * rise)));
}
to[at + stride * k] = v;
}
}
function enlarge(map, width, height, smooth = true) {
const rows = new Float32Array(map.h * width),
out = new Float32Array(height * width);
for (let y = 0; y < map.h; y++) resampleRow(map.values, y * map.w, 1, map.w, rows, y * width, 1, width, smooth);
for (let x = 0; x < width; x++) resampleRow(rows, x, width, map.h, out, x, width, height, smooth);
return out;
}
function blur(map, sigma) {
const radius = Math.ceil(3 * sigma);
const kernel = Array.from({ length: 2 * radius + 1 }, (_, i) => Math.exp(-((i - radius) ** 2) / (2 * sigma * sigma)));
const whole = kernel.reduce((sum, each) => sum + each);
const convolve = (from, count, length, step, jump) => {
const to = new Float32Array(from.length);
for (let n = 0; n < count; n++) {
for (let i = 0; i < length; i++) {
let sum = 0;
for (let k = -radius; k <= radius; k++)
sum += kernel[k + radius] * from[n * jump + step * Math.min(length - 1, Math.max(0, i + k))];
to[n * jump + step * i] = sum / whole;
}
}
return to;
};
return convolve(convolve(map.values, map.h, map.w, 1, map.w), map.w, map.h, map.w, 1);
}
function peak(map) {
let best = 0,
found = -Infinity;
map.values.forEach((v, i) => {
const size = map.signed ? Math.abs(v) : v;
if (size > found) {
found = size;
best = i;
}
});
return [Math.floor(best / map.w), best % map.w];
}
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const stay = (value, cells) => Math.min(cells - 1, Math.max(0, value));
const cellAt = (x, y, { h, w }) => [stay(Math.floor(y * h), h), stay(Math.floor(x * w), w)];
function positionIn(element, { clientX, clientY }) {
const { left, top, width, height } = element.getBoundingClientRect();
return [(clientX - left) / width, (clientY - top) / height];
}
function followCells(canvas, { map, cell, over, mark, leave, start = peak }) {
canvas.addEventListener("pointermove", (event) => over(...positionIn(canvas, event)));
canvas.addEventListener("pointerdown", (event) => over(...positionIn(canvas, event)));
canvas.addEventListener("pointerleave", ({ pointerType }) => {
if (document.activeElement !== canvas && pointerType !== "touch") leave();
});
canvas.addEventListener("blur", leave);
canvas.addEventListener("focus", () => {
if (!map() || cell() || !canvas.matches(":focus-visible")) return;
const [row, column] = start(map());
mark(row, column);
});
canvas.addEventListener("keydown", (event) => {
const step = STEPS[event.key],
found = map();
if (!step || !found || event.ctrlKey || event.metaKey || event.altKey) return;
event.preventDefault();
event.stopPropagation();
const [row, column] = cell() || start(found),
far = event.shiftKey ? Math.max(1, Math.round(found.w / 16)) : 1;
mark(stay(row + far * step[0], found.h), stay(column + far * step[1], found.w));
});
}
const tables = {};
function table(name) {
return (tables[name] ||= bytes(COLOR_MAPS[name] || COLOR_MAPS.magma));
}
const FINEST = 4096;
const WEIGHTS = Float32Array.from({ length: FINEST + 1 }, (_, i) => RULE.strength * (i / FINEST) ** RULE.curve);
function draw(pixels, width, height, rendering) {
const values = enlarge(rendering, width, height, rendering.smooth);
const sizes = blendColors(pixels, values, rendering),
isNegative = (i) => rendering.colors === "signed" && values[i] < 0;
if (!rendering.fine && rendering.lines !== false) contours(pixels, sizes, width, height, isNegative);
for (let i = 0, p = 0; i < values.length; i++, p += 4) {
if (values[i] === values[i]) continue;
const stripe = (Math.floor((Math.floor(i / width) + (i % width)) / 4) % 2) * 255;
pixels[p] = pixels[p + 1] = pixels[p + 2] = stripe;
}
}
function blendColors(pixels, values, { colors, low, high, fine, mapOnly }) {
const sizes = new Float32Array(values.length);
const signed = colors === "signed",
color = signed && !mapOnly ? null : table(colors);
const [zero, scale] = signed ? [0, 1 / high] : [low, 1 / (high - low)];
const [keep, light] = fine ? [RULE.fine_color, RULE.fine_light] : [RULE.coarse_color, RULE.coarse_light];
for (let i = 0, p = 0; i < values.length; i++, p += 4) {
const share = (values[i] - zero) * scale;
const size = Math.min(1, signed ? Math.abs(share) : Math.max(0, share));
sizes[i] = size;
if (mapOnly) {
const at = 3 * Math.round(255 * (signed ? (1 + Math.max(-1, Math.min(1, share))) / 2 : size)) || 0;
for (let c = 0; c < 3; c++) pixels[p + c] = color[at + c];
continue;
}
const gray = LUMA[0] * pixels[p] + LUMA[1] * pixels[p + 1] + LUMA[2] * pixels[p + 2];
const part = WEIGHTS[Math.round(size * FINEST)] || 0;
const k = 3 * Math.round(size * 255) || 0;
const end = share < 0 ? BLUE : RED;
for (let c = 0; c < 3; c++) {
const under = (gray + (pixels[p + c] - gray) * keep) * light;
pixels[p + c] = under + ((signed ? end[c] : color[k + c]) - under) * part;
}
}
return sizes;
}
function contours(pixels, sizes, width, height, isNegative) {
const wide = Math.max(1, RULE.line * Math.min(width, height));
const reach = Math.ceil(1.5 * wide + 0.5);
const levels = [RULE.low_line, RULE.high_line];
const crossed = (x, y, level) => {
let above = false,
below = false;
for (let v = Math.max(0, y - reach); v <= Math.min(height - 1, y + reach); v++) {
for (let u = Math.max(0, x - reach); u <= Math.min(width - 1, x + reach); u++) {
if (sizes[v * width + u] >= level) above = true;
else below = true;
if (above && below) return true;
}
}
return false;
};
for (let y = 0, i = 0; y < height; y++) {
for (let x = 0; x < width; x++, i++) {
const here = sizes[i];
const across = Math.max(x ? Math.abs(here - sizes[i - 1]) : 0, x < width - 1 ? Math.abs(sizes[i + 1] - here) : 0);
const down = Math.max(
y ? Math.abs(here - sizes[i - width]) : 0,
y < height - 1 ? Math.abs(sizes[i + width] - here) : 0,
);
const most = Math.max(1e-6, across + down);
if (!levels.some((level) => Math.abs(here - level) < (1.5 * wide + 0.5) * most)) continue;
const slope = Math.max(1e-6, Math.hypot(across, down));
let line = 0,
halo = 0;
for (const level of levels) {
const away = Math.abs(here - level) / slope;
if (!(away < 1.5 * wide + 0.5) || !crossed(x, y, level)) continue;
line = Math.max(line, Math.min(1, Math.max(0, wide / 2 + 0.5 - away)));
halo = Math.max(halo, Math.min(1, (1.5 * wide + 0.5 - away) / wide));
}
if (!halo) continue;
const ground = isNegative(i) ? 255 : 0;
for (let p = 4 * i; p < 4 * i + 3; p++) {
const under = pixels[p] + (ground - pixels[p]) * RULE.halo * halo;
pixels[p] = under + (255 - ground - under) * line;
}
}
}
}
const MAX_SIDE = 2560;
const DEFAULT_SIDE = 512;
const MIN_CELL = 5;
class Layers {
constructor() {
this.photo = document.createElement("canvas");
this.drawn = document.createElement("canvas");
this.plain = document.createElement("canvas");
this.edges = false;
}
size(width, height) {
for (const each of [this.photo, this.drawn]) [each.width, each.height] = [width, height];
this.plain.width = 0;
}
}
class Surface {
constructor(canvas, repaint = null) {
this.canvas = canvas;
this.image = null;
this.rendering = null;
this.own = new Layers();
this.faded = null;
this.timer = 0;
this.mixed = [1, {}];
this.layers = this.own;
if (repaint) new ResizeObserver(() => this.fit() && repaint()).observe(canvas);
}
get ratio() {
return this.image ? this.image.naturalHeight / this.image.naturalWidth : 1;
}
fit() {
const across = this.canvas.getBoundingClientRect().width * (window.devicePixelRatio || 1);
const wide = Math.round(across) || (this.image ? this.image.naturalWidth : DEFAULT_SIDE);
const width = Math.max(1, Math.min(wide, MAX_SIDE)),
height = Math.max(1, Math.round(width * this.ratio));
if (this.canvas.width === width && this.canvas.height === height) return false;
[this.canvas.width, this.canvas.height] = [width, height];
return true;
}
render(layers, width, height, edges) {
layers.size(width, height);
layers.edges = edges && !this.rendering.smooth;
const photo = drawImage(layers.photo, width, height, this.image);
this.drawLayer(layers.drawn, photo.getImageData(0, 0, width, height), this.rendering, layers.edges);
}
drawLayer(canvas, pixels, rendering, edges) {
const { width, height } = pixels,
context = canvas.getContext("2d");
draw(pixels.data, width, height, rendering);
context.putImageData(pixels, 0, 0);
const ratio = width / (this.canvas.clientWidth || width),
wide = Math.max(1, Math.round(ratio));
if (!edges || width / rendering.w < MIN_CELL * ratio) return;
const drawEdges = (ink, offset) => {
context.fillStyle = ink;
for (let k = 1; k < rendering.w; k++)
context.fillRect(Math.round((k * width) / rendering.w) - wide + offset, 0, wide, height);
for (let k = 1; k < rendering.h; k++)
context.fillRect(0, Math.round((k * height) / rendering.h) - wide + offset, width, wide);
};
drawEdges("rgba(0, 0, 0, .4)", 0);
drawEdges("rgba(255, 255, 255, .4)", wide);
}
mapLayer(layers) {
const { plain, drawn } = layers,
{ width, height } = drawn;
if (plain.width !== width || plain.height !== height) {
[plain.width, plain.height] = [width, height];
const pixels = plain.getContext("2d").createImageData(width, height);
for (let p = 0; p < pixels.data.length; p++) pixels.data[p] = p % 4 < 3 ? 128 : 255;
this.drawLayer(plain, pixels, { ...this.rendering, mapOnly: true }, layers.edges);
}
return plain;
}
mix(opacity, { mode = "overlay", split = 0.5 } = {}, canvas = this.canvas, layers = this.layers) {
if (canvas === this.canvas) this.mixed = [opacity, { mode, split }];
const context = canvas.getContext("2d"),
{ width, height } = canvas;
[context.globalAlpha, context.imageSmoothingQuality] = [1, "high"];
if (mode === "map") {
context.drawImage(this.mapLayer(layers), 0, 0, width, height);
return;
}
context.drawImage(layers.photo, 0, 0, width, height);
if (mode === "photograph") return;
const left = mode === "swipe" ? Math.round(split * width) : 0;
context.save();
context.beginPath();
context.rect(left, 0, width - left, height);
context.clip();
context.globalAlpha = opacity;
context.drawImage(layers.drawn, 0, 0, width, height);
context.restore();
}
}
function drawImage(canvas, width, height, image) {
[canvas.width, canvas.height] = [width, height];
const context = canvas.getContext("2d", { willReadFrequently: true });
context.imageSmoothingQuality = "high";
context.fillStyle = "#808080";
context.fillRect(0, 0, width, height);
if (image) context.drawImage(image, 0, 0, width, height);
return context;
}
function loadImage(source) {
return new Promise((resolve) => {
const image = new Image();
image.onload = () => resolve(image);
image.onerror = () => resolve(null);
image.src = source;
});
}
function endTicks({ low, high, clipped, colors }) {
return [
{ text: `${clipped && colors === "signed" ? "≤ " : ""}${formatValue(low)}`, at: 0 },
{ text: `${clipped ? "≥ " : ""}${formatValue(high)}`, at: 1 },
];
}
const rounded = (value) => formatExact(Number(value.toPrecision(4)));
class NotebookMap {
constructor(image, { map, drawing, scale, limits, signed, unit, label, terms }) {
this.map = { ...map, values: floats(map) };
const values = this.map.values.map((v) => (Number.isFinite(v) ? (signed ? v : Math.abs(v)) : NaN));
const shown = drawing.sigma ? blur({ ...this.map, values }, drawing.sigma) : values;
this.drawing = { ...this.map, ...drawing, values: shown };
this.limits = limits;
this.unit = unit;
this.terms = terms;
this.cell = null;
this.canvas = make("canvas", { width: 448, height: 448, tabindex: 0, role: "img", "aria-label": label });
this.surface = new Surface(this.canvas, () => this.render());
this.surface.image = image;
this.makeControls();
this.scale = make("img", { class: "saliscope-scale", src: scale });
this.ticks = make("div", { class: "saliscope-ticks" });
this.read = make("output", { class: "saliscope-read", "aria-live": "polite" });
this.root = make("div", {}, this.tools, this.canvas, this.scale, this.ticks, this.read);
this.listen();
}
makeControls() {
const { terms } = this;
const modes = ["overlay", "photograph", "map", "swipe"].map((mode) =>
make("option", { value: mode, text: terms[mode] }),
);
this.mode = make("select", { "aria-label": terms.mode, oninput: () => this.mix() }, ...modes);
this.share = make("input", { type: "range", min: 0, max: 1, step: 0.01, value: 1, oninput: () => this.mix() });
this.shareName = make("span", { text: terms.opacity });
const limit = (name) =>
make("input", { type: "number", step: "any", "aria-label": terms[name], oninput: () => this.readLimits() });
this.low = limit("low");
this.high = limit("high");
this.reset = make("button", { text: terms.reset, onclick: () => this.setLimits(null) });
const opacity = make("label", {}, this.shareName, this.share);
const range = make("span", {}, `${terms.colors} `, this.low, ` ${terms.to} `, this.high);
this.tools = make("div", { class: "saliscope-tools" }, this.mode, opacity, range, this.reset);
}
listen() {
const { canvas } = this;
followCells(canvas, {
map: () => this.map,
cell: () => this.cell,
start: ({ h, w }) => [Math.floor(h / 2), Math.floor(w / 2)],
over: (x, y) => {
if (this.mode.value === "swipe") {
this.share.value = String(x);
this.mix();
}
this.point(...cellAt(x, y, this.map));
},
mark: (row, column) => this.point(row, column),
leave: () => this.point(null),
});
}
widen() {
for (const field of [this.low, this.high]) field.style.width = `${Math.max(6, field.value.length) + 1}ch`;
}
readLimits() {
this.widen();
const limits = [this.low.valueAsNumber, this.high.valueAsNumber];
const isRange = limits.every(Number.isFinite) && limits[1] > limits[0];
for (const field of [this.low, this.high]) field.setCustomValidity(isRange ? "" : this.terms.invalid);
if (isRange) this.setLimits(limits, true);
else this.high.reportValidity();
}
setLimits(limits, typed = false) {
this.limits = limits;
this.draw(typed);
}
draw(typed = false) {
let [low, high] = this.limits || [this.drawing.low, this.drawing.high];
const far = Math.max(Math.abs(low), Math.abs(high));
if (this.drawing.colors === "signed") [low, high] = [-far, far];
this.rendering = { ...this.drawing, low, high, clipped: this.drawing.largest > far };
if (!typed) [this.low.value, this.high.value] = [low, high].map(rounded);
this.widen();
const ticks = endTicks(this.rendering);
const [first, last] = [ticks[0].text, `${ticks[1].text} ${this.unit}`];
this.scale.setAttribute("alt", `${first} ${this.terms.to} ${last}`);
this.ticks.replaceChildren(make("span", { text: first }), make("span", { text: last }));
this.render();
}
render() {
const { surface, canvas } = this;
surface.rendering = this.rendering;
surface.render(surface.own, canvas.width, canvas.height, true);
this.mix();
}
mix() {
const mode = this.mode.value,
share = this.share.valueAsNumber,
hasDivider = mode === "swipe";
this.shareName.textContent = hasDivider ? this.terms.divider : this.terms.opacity;
this.share.disabled = mode === "photograph" || mode === "map";
this.surface.mix(hasDivider ? 1 : share, { mode, split: share });
}
point(row, column) {
this.cell = row === null ? null : [row, column];
this.read.textContent = this.cell ? describeCell(this.terms, this.map, this.cell[0], this.cell[1], this.unit) : "";
}
}
async function showMap(root, data) {
const image = root && (await loadImage(data.image));
if (!image) return;
const map = new NotebookMap(image, data);
root.replaceChildren(map.root);
map.surface.fit();
map.draw();
}
return showMap;
})()
