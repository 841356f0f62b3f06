// The report: filters and enlarges images.
import { downloadFile, make } from "../../../page/wire.js";
import { $, $$, canvasOf, DATA, drawAll, drawInto, mapOf, percent, photo } from "./drawing.js";

const PAGE = 60;

const describe = (entry) =>
  entry.label && entry.correct !== null
    ? `${entry.label}${entry.correct ? ", correct" : `, predicted as ${entry.prediction}`}`
    : entry.prediction;

for (const button of $$("button.thumb")) {
  const k = Number(button.dataset.open),
    plain = "plain" in button.dataset;
  button.setAttribute("aria-label", `Open ${DATA.images[k].path}: ${describe(DATA.images[k])}`);
  button.append(canvasOf(k, button.classList.contains("wide") ? 224 : 128, plain));
}

$("#all-mistakes")?.addEventListener("click", (event) => {
  for (const card of $$(".mistake[hidden]")) card.hidden = false;
  event.target.remove();
});

// Image grid

const form = $("#filters"),
  grid = $("#grid"),
  more = $("#more");
export let order = [];
let drawn = 0;

/** Fill a list of options with names, each with its number of images. */
function fillOptions(name, counts, titleOf = (each) => each) {
  const list = form.elements[name];
  list.closest("label").hidden = !counts.size; // hide a filter without options
  for (const [each, count] of [...counts].sort((a, b) => titleOf(a[0]).localeCompare(titleOf(b[0])))) {
    list.append(make("option", { value: each, text: `${titleOf(each)} (${count})` }));
  }
}

export function countValues(values) {
  const counts = new Map();
  for (const value of values) if (value) counts.set(value, (counts.get(value) || 0) + 1);
  return counts;
}

export const className = (entry) => entry.label || entry.target;
const ORDERS = {
  path: null,
  high: (a, b) => b.probability - a.probability,
  low: (a, b) => a.probability - b.probability,
  border: (a, b) => (b.border ?? -1) - (a.border ?? -1),
};

function matches(entry) {
  const value = (name) => (form.elements[name] ? form.elements[name].value : "");
  const text = value("text").trim().toLowerCase();
  return (
    (!value("class") || className(entry) === value("class")) &&
    (!value("prediction") || entry.prediction === value("prediction")) &&
    (!value("correct") || entry.correct === (value("correct") === "right")) &&
    (!value("finding") || entry.findings.includes(value("finding"))) &&
    (!text ||
      [entry.path, entry.label, entry.prediction, entry.target].some(
        (each) => each && each.toLowerCase().includes(text),
      ))
  );
}

function cell(k) {
  const entry = DATA.images[k];
  const button = make(
    "button",
    { type: "button", class: "cell", "data-open": k, "aria-label": `Open ${entry.path}: ${describe(entry)}` },
    canvasOf(k, 160, !form.elements.maps.checked),
  );
  const verdict = entry.correct === null ? "" : entry.correct ? "✓ " : "✗ ";
  button.append(
    make("span", {
      class: entry.correct === false ? "wrong" : "",
      text: `${verdict}${entry.prediction} ${percent(entry.probability)}`,
      title: entry.prediction,
    }),
    make("span", { class: "path", text: entry.correct === false ? entry.label : entry.path, title: entry.path }),
  );
  return button;
}

function extend() {
  const next = order.slice(drawn, drawn + PAGE);
  grid.append(...next.map(cell));
  drawn += next.length;
  more.hidden = drawn >= order.length;
  more.textContent = `Show ${Math.min(PAGE, order.length - drawn)} more`;
}

/** Functions that are called after the list has changed. */
export const whenFiltered = [];
let selected = null;

/** List only these images, in addition to the filters; null: all. */
export function select(numbers) {
  selected = numbers;
  filter();
}

function filter() {
  order = DATA.images.map((_, k) => k).filter((k) => matches(DATA.images[k]) && (!selected || selected.has(k)));
  const by = ORDERS[form.elements.order.value];
  if (by) order.sort((a, b) => by(DATA.images[a], DATA.images[b]));
  grid.replaceChildren();
  drawn = 0;
  extend();
  const correct = order.filter((k) => DATA.images[k].correct).length;
  const known = order.filter((k) => DATA.images[k].correct !== null).length;
  const count = (value) => value.toLocaleString("en");
  const parts = [`${count(order.length)} of ${count(DATA.images.length)} images`];
  if (selected) parts.push("in the rectangle");
  if (known && form.elements.correct) parts.push(`${count(correct)} correct`);
  $("#count").textContent = order.length
    ? parts.join(", ")
    : "No image matches these filters. Reset them, or use fewer filters.";
  for (const call of whenFiltered) call();
}

fillOptions("class", countValues(DATA.images.map(className)));
fillOptions("prediction", countValues(DATA.images.map((entry) => entry.prediction)));
fillOptions(
  "finding",
  countValues(DATA.images.flatMap((entry) => entry.findings)),
  (code) => DATA.findings[code] || code,
);
form.addEventListener("input", filter);
form.addEventListener("reset", () => {
  selected = null;
  setTimeout(filter);
});
form.addEventListener("submit", (event) => event.preventDefault());
more.addEventListener("click", () => {
  const first = grid.children.length;
  extend();
  grid.children[first]?.focus();
});
filter();

/** Print everything: all images of the list, all mistakes and all groups. A browser does not wait before it prints. */
addEventListener("beforeprint", () => {
  while (drawn < order.length) extend();
  for (const card of $$(".mistake[hidden]")) card.hidden = false;
  for (const group of $$("details")) group.open = true;
  drawAll();
});

/** Show the images of a class, a confusion or a finding in the grid. */
function show(wanted) {
  form.reset();
  for (const [name, value] of Object.entries(wanted))
    if (value !== undefined && form.elements[name]) form.elements[name].value = value;
  setTimeout(filter);
  $("#images").scrollIntoView();
  form.elements.text.focus({ preventScroll: true });
}

// Enlarged image

const dialog = $("#large"),
  stage = $("#stage"),
  opacity = $("#opacity");
let open = 0,
  among = [];

async function redraw() {
  const k = open,
    image = await photo(k);
  if (k !== open) return;
  const entry = DATA.images[k];
  drawInto(stage, image, entry.map === undefined ? null : mapOf(entry.map), { opacity: opacity.value / 100 });
  stage.dataset.shown = k;
}

function details(entry) {
  const bars = make("div", { class: "bars" });
  for (const [name, share] of entry.top) {
    bars.append(
      make("span", { text: name }),
      make("span", { text: percent(share) }),
      make("i", { style: `--p:${(100 * share).toFixed(1)}%` }),
    );
  }
  const facts = make("dl", { class: "facts" });
  const rows = [
    ["Path", entry.path],
    ["Label", entry.label],
    ["Probability of the label", percent(entry.label_probability)],
    ["Explained", entry.target],
    ["Score", entry.score === null ? "" : entry.score.toPrecision(4)],
    ["Relevance at the border", percent(entry.border)],
  ];
  for (const [name, value] of rows) if (value) facts.append(make("dt", { text: name }), make("dd", { text: value }));
  const parts = [bars, facts, ...entry.texts.map((text) => make("p", { class: "note", text }))];
  if (entry.link) {
    const link = make("a", { href: entry.link, target: "_blank", rel: "noopener", text: "Open in the app" });
    const needed = " The app must be started with this run: see the note above the images.";
    parts.push(make("p", {}, link, entry.known ? "" : make("span", { class: "small", text: needed })));
  }
  return parts;
}

/** Enlarge image k; the arrow keys go through `numbers`. */
export function openAmong(numbers, k) {
  among = numbers;
  dialog.showModal();
  openImage(k);
}

function openImage(k) {
  open = k;
  const entry = DATA.images[k],
    scale = Math.max(1, 640 / Math.max(entry.w, entry.h)),
    index = among.indexOf(k);
  [stage.width, stage.height] = entry.image ? [Math.round(entry.w * scale), Math.round(entry.h * scale)] : [448, 448];
  stage.setAttribute("aria-label", `${entry.path} with its map`);
  $("#large-title").textContent = describe(entry);
  $("#details").replaceChildren(
    ...details(entry),
    ...(entry.image
      ? []
      : [make("p", { class: "note", text: "This image was not available when the report was written." })]),
  );
  $("#previous").disabled = index <= 0;
  $("#next").disabled = index < 0 || index >= among.length - 1;
  redraw();
}

function step(by) {
  const next = among[among.indexOf(open) + by];
  if (next !== undefined) openImage(next);
}

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  const opener = target.closest("[data-open]"),
    wanted = target.closest("[data-class], [data-finding]");
  if (opener) {
    // The arrow keys go through the images next to it: the filtered grid, or the typical images of a cluster.
    const near = $$("[data-open]", opener.closest(".thumbs") || $("#mistakes") || document);
    openAmong(
      opener.closest("#grid") ? order : near.map((each) => Number(each.dataset.open)),
      Number(opener.dataset.open),
    );
  } else if (wanted) {
    show({
      class: wanted.dataset.class,
      prediction: wanted.dataset.prediction,
      finding: wanted.dataset.finding,
      correct: wanted.dataset.prediction ? "wrong" : undefined,
    });
  } else if (target === dialog) dialog.close();
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

// Download

/** Quote a value for CSV. A spreadsheet must not run a text as a formula, so such a text starts with an apostrophe. */
function quote(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = String(value),
    safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Return the listed images as CSV, with a header. */
function asCsv(entries) {
  const names = ["path", "label", "prediction", "probability", "label_probability", "correct", "target", "score"];
  const rows = entries.map((entry) => [...names.map((name) => quote(entry[name])), quote(entry.findings.join(" "))]);
  return [[...names, "findings"].join(","), ...rows.map((row) => row.join(","))].map((row) => `${row}\r\n`).join("");
}

$("#csv").addEventListener("click", () => {
  const texts = ["\ufeff", asCsv(order.map((k) => DATA.images[k]))];
  downloadFile(new Blob(texts, { type: "text/csv;charset=utf-8" }), "images.csv");
});
