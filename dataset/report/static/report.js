// The report: sorts its tables, filters its pictures, draws its maps. colours.js, field.js and paint.js stand before it.

/** Bytes of a base64 string; colours.js asks for it. */
function bytes(b64) {
  const raw = atob(b64), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (query, within = document) => within.querySelector(query);
const $$ = (query, within = document) => [...within.querySelectorAll(query)];
const percent = (share) => (share === null || share === undefined ? "" : `${(100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0)}%`);
const PAGE = 60;

/** An element whose words are only ever text. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name === "style") node.style.cssText = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// Maps and photographs

const unpacked = new Map();

/** Map number k: {h, w, values}. */
function mapOf(k) {
  if (!unpacked.has(k)) {
    const { h, w, m, b } = DATA.maps[k], steps = new Int8Array(bytes(b).buffer);
    unpacked.set(k, { h, w, values: Float32Array.from(steps, (step) => (step / 127) * m) });
  }
  return unpacked.get(k);
}

const loading = new Map();

/** The photograph of picture k, once it is decoded; null where there is none. */
function photo(k) {
  if (!loading.has(k)) {
    const source = DATA.pictures[k].image;
    loading.set(k, source ? new Promise((done) => {
      const image = new Image();
      image.onload = () => done(image);
      image.onerror = () => done(null);
      image.src = source;
    }) : Promise.resolve(null));
  }
  return loading.get(k);
}

/** Draw a photograph with a map at an opacity, or either alone, into a canvas of its size. */
function drawInto(canvas, image, map, { opacity = 1, limit = null, signed = false } = {}) {
  const { width, height } = canvas, context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#808080";
  context.fillRect(0, 0, width, height);
  if (image) context.drawImage(image, 0, 0, width, height);
  if (!map || !opacity) return;
  const under = context.getImageData(0, 0, width, height), over = new ImageData(new Uint8ClampedArray(under.data), width, height);
  const both = signed || map.values.some((value) => value < 0);
  draw(over.data, width, height, view(map, { colours: signed ? "signed" : "auto", limits: limit ? [both ? -limit : 0, limit] : null }));
  for (let p = 0; p < over.data.length; p++) under.data[p] += (over.data[p] - under.data[p]) * opacity;
  context.putImageData(under, 0, 0);
}

async function paintCanvas(canvas) {
  const { map, photo: which, limit, plain, signed } = canvas.dataset;
  const image = which === undefined ? null : await photo(Number(which));
  drawInto(canvas, image, map === undefined || plain !== undefined ? null : mapOf(Number(map)), { limit: limit ? Number(limit) : null, signed: signed !== undefined });
  canvas.dataset.drawn = "";
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    paintCanvas(entry.target);
  }
}, { rootMargin: "400px" });

/** A canvas of picture k that is drawn when it comes near the window. */
function canvasOf(k, side, plain = false) {
  const picture = DATA.pictures[k], scale = side / Math.max(picture.w, picture.h);
  const size = picture.image ? [picture.w * scale, picture.h * scale].map(Math.round) : [side, side];
  const canvas = make("canvas", { width: size[0], height: size[1], "aria-hidden": "true", "data-photo": k });
  if (picture.map !== undefined) canvas.dataset.map = picture.map;
  if (plain) canvas.dataset.plain = "";
  seen.observe(canvas);
  return canvas;
}

const said = (picture) => (picture.label && picture.correct !== null
  ? `${picture.label}${picture.correct ? ", right" : `, taken for ${picture.prediction}`}` : picture.prediction);

for (const button of $$("button.thumb")) {
  const k = Number(button.dataset.open), plain = "plain" in button.dataset;
  button.setAttribute("aria-label", `Open ${DATA.pictures[k].path}: ${said(DATA.pictures[k])}`);
  button.append(canvasOf(k, button.classList.contains("wide") ? 224 : 128, plain));
}
for (const canvas of $$("canvas[data-map]:not([aria-hidden])")) seen.observe(canvas);

// Tables

/** Sort the rows of a table by a column: numbers by value, else by words; rows without a value last. */
function sortBy(header, index) {
  const up = header.getAttribute("aria-sort") !== "ascending" && (header.getAttribute("aria-sort") !== null || !header.classList.contains("n"));
  const body = header.closest("table").tBodies[0];
  const value = (row) => {
    const given = row.cells[index].dataset.v;
    return given === undefined ? row.cells[index].textContent.trim().toLowerCase() : given === "" ? null : Number(given);
  };
  const rows = [...body.rows].map((row) => [value(row), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return (up ? 1 : -1) * (typeof a === "string" ? a.localeCompare(b) : a - b);
  });
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...rows.map(([, row]) => row));
}

for (const table of $$("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, index) => {
    if (header.classList.contains("plain")) return;
    const button = make("button", { type: "button", text: header.textContent });
    button.addEventListener("click", () => sortBy(header, index));
    header.replaceChildren(button);
  });
}

$("#all-mistakes")?.addEventListener("click", (event) => {
  for (const card of $$(".mistake[hidden]")) card.hidden = false;
  event.target.remove();
});

// The grid

const form = $("#filters"), grid = $("#grid"), more = $("#more");
let order = [], drawn = 0;

/** Fill a list with names, each with its number of pictures. */
function fill(name, counts, words = (each) => each) {
  const list = form.elements[name];
  list.closest("label").hidden = !counts.size; // no control without effect
  for (const [each, count] of [...counts].sort((a, b) => words(a[0]).localeCompare(words(b[0])))) {
    list.append(make("option", { value: each, text: `${words(each)} (${count})` }));
  }
}

function counted(values) {
  const counts = new Map();
  for (const value of values) if (value) counts.set(value, (counts.get(value) || 0) + 1);
  return counts;
}

const className = (picture) => picture.label || picture.target;
const ORDERS = {
  path: null,
  high: (a, b) => b.probability - a.probability,
  low: (a, b) => a.probability - b.probability,
  border: (a, b) => (b.border ?? -1) - (a.border ?? -1),
};

function fits(picture) {
  const value = (name) => (form.elements[name] ? form.elements[name].value : "");
  const text = value("text").trim().toLowerCase();
  return (!value("class") || className(picture) === value("class"))
    && (!value("prediction") || picture.prediction === value("prediction"))
    && (!value("correct") || picture.correct === (value("correct") === "right"))
    && (!value("finding") || picture.findings.includes(value("finding")))
    && (!text || [picture.path, picture.label, picture.prediction, picture.target].some((each) => each && each.toLowerCase().includes(text)));
}

function cell(k) {
  const picture = DATA.pictures[k];
  const button = make("button", { type: "button", class: "cell", "data-open": k, "aria-label": `Open ${picture.path}: ${said(picture)}` }, canvasOf(k, 160, !form.elements.maps.checked));
  const verdict = picture.correct === null ? "" : picture.correct ? "✓ " : "✗ ";
  button.append(make("span", { class: picture.correct === false ? "wrong" : "", text: `${verdict}${picture.prediction} ${percent(picture.probability)}`, title: picture.prediction }),
    make("span", { class: "path", text: picture.correct === false ? picture.label : picture.path, title: picture.path }));
  return button;
}

function extend() {
  const next = order.slice(drawn, drawn + PAGE);
  grid.append(...next.map(cell));
  drawn += next.length;
  more.hidden = drawn >= order.length;
  more.textContent = `Show ${Math.min(PAGE, order.length - drawn)} more`;
}

function filter() {
  order = DATA.pictures.map((_, k) => k).filter((k) => fits(DATA.pictures[k]));
  const by = ORDERS[form.elements.order.value];
  if (by) order.sort((a, b) => by(DATA.pictures[a], DATA.pictures[b]));
  grid.replaceChildren();
  drawn = 0;
  extend();
  const right = order.filter((k) => DATA.pictures[k].correct).length, known = order.filter((k) => DATA.pictures[k].correct !== null).length;
  $("#count").textContent = order.length ? `${order.length.toLocaleString("en")} of ${DATA.pictures.length.toLocaleString("en")} pictures${known && form.elements.correct ? `, ${right.toLocaleString("en")} right` : ""}`
    : "No picture fits. Clear the filters, or choose less.";
}

fill("class", counted(DATA.pictures.map(className)));
fill("prediction", counted(DATA.pictures.map((picture) => picture.prediction)));
fill("finding", counted(DATA.pictures.flatMap((picture) => picture.findings)), (code) => DATA.findings[code] || code);
form.addEventListener("input", filter);
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", (event) => event.preventDefault());
more.addEventListener("click", () => {
  const first = grid.children.length;
  extend();
  grid.children[first]?.focus();
});
filter();

/** Show the pictures of a class, a confusion or a finding in the grid. */
function show(wanted) {
  form.reset();
  for (const [name, value] of Object.entries(wanted)) if (value !== undefined && form.elements[name]) form.elements[name].value = value;
  setTimeout(filter);
  $("#pictures").scrollIntoView();
  form.elements.text.focus({ preventScroll: true });
}

// One picture, large

const dialog = $("#large"), stage = $("#stage"), opacity = $("#opacity");
let open = 0, among = [];

async function redraw() {
  const k = open, image = await photo(k);
  if (k !== open) return;
  const picture = DATA.pictures[k];
  drawInto(stage, image, picture.map === undefined ? null : mapOf(picture.map), { opacity: opacity.value / 100 });
  stage.dataset.shown = k;
}

function details(picture) {
  const parts = [make("div", { class: "bars" })];
  for (const [name, share] of picture.top) {
    parts[0].append(make("span", { text: name }), make("span", { text: percent(share) }), make("i", { style: `--p:${(100 * share).toFixed(1)}%` }));
  }
  const facts = make("dl", { class: "facts" });
  const rows = [["Path", picture.path], ["Label", picture.label], ["Probability of the label", percent(picture.label_probability)], ["Explained", picture.target],
    ["Score", picture.score === null ? "" : picture.score.toPrecision(4)], ["Relevance at the border", percent(picture.border)]];
  for (const [name, value] of rows) if (value) facts.append(make("dt", { text: name }), make("dd", { text: value }));
  parts.push(facts, ...picture.texts.map((text) => make("p", { class: "note", text })));
  if (picture.link) {
    parts.push(make("p", {}, make("a", { href: picture.link, target: "_blank", rel: "noopener", text: "Open in the app" }),
      ...(picture.known ? [] : [make("span", { class: "small", text: " It has to be started with this run: see above the pictures." })])));
  }
  return parts;
}

function turn(k) {
  open = k;
  const picture = DATA.pictures[k], scale = Math.max(1, 640 / Math.max(picture.w, picture.h)), place = among.indexOf(k);
  [stage.width, stage.height] = picture.image ? [Math.round(picture.w * scale), Math.round(picture.h * scale)] : [448, 448];
  stage.setAttribute("aria-label", `${picture.path} with its map`);
  $("#large-title").textContent = said(picture);
  $("#details").replaceChildren(...details(picture), ...(picture.image ? [] : [make("p", { class: "note", text: "The photograph could not be read when the report was written." })]));
  $("#previous").disabled = place <= 0;
  $("#next").disabled = place < 0 || place >= among.length - 1;
  redraw();
}

function step(by) {
  const next = among[among.indexOf(open) + by];
  if (next !== undefined) turn(next);
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open]"), wanted = event.target.closest("[data-class], [data-finding]");
  if (opener) {
    // The arrows go through what stands beside it: the filtered grid, or the typical pictures of a cluster.
    among = opener.closest("#grid") ? order : $$("[data-open]", opener.closest(".thumbs") || $("#mistakes") || document).map((each) => Number(each.dataset.open));
    dialog.showModal();
    turn(Number(opener.dataset.open));
  } else if (wanted) {
    show({ class: wanted.dataset.class, prediction: wanted.dataset.prediction, finding: wanted.dataset.finding, correct: wanted.dataset.prediction ? "wrong" : undefined });
  } else if (event.target === dialog) dialog.close();
});
dialog.addEventListener("keydown", (event) => {
  if (event.target === opacity && event.key.startsWith("Arrow")) return;
  if (event.key === "ArrowRight") step(1);
  if (event.key === "ArrowLeft") step(-1);
});
opacity.addEventListener("input", redraw);
$("#previous").addEventListener("click", () => step(-1));
$("#next").addEventListener("click", () => step(1));
$("#close").addEventListener("click", () => dialog.close());
document.documentElement.dataset.ready = "";
