// The view of the features: one dot per image, colored by class. A rectangle selects images for the list.
import { make } from "../../../page/wire.js";
import { $, DATA } from "./drawing.js";
import { className, countValues, openAmong, order, select, whenFiltered } from "./report.js";

const places = $("#places");
const COLORS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866"];
const OTHER = "#999999",
  MARGIN = 12,
  NEAR = 10;
let dragged = null;

const frequent = [...countValues(DATA.images.map(className))].sort((a, b) => b[1] - a[1]).slice(0, COLORS.length);
const colorOf = new Map(frequent.map(([name], k) => [name, COLORS[k]]));

/** Return the position of a dot in pixels of the canvas. */
function position([, x, y]) {
  return [MARGIN + x * (places.width - 2 * MARGIN), MARGIN + y * (places.height - 2 * MARGIN)];
}

function drawPlaces() {
  const context = places.getContext("2d"),
    listed = new Set(order);
  context.clearRect(0, 0, places.width, places.height);
  const sorted = [...DATA.places].sort((a, b) => Number(listed.has(a[0])) - Number(listed.has(b[0])));
  for (const place of sorted) {
    const [x, y] = position(place),
      entry = DATA.images[place[0]],
      on = listed.has(place[0]);
    context.globalAlpha = on ? 0.9 : 0.15;
    context.fillStyle = context.strokeStyle = colorOf.get(className(entry)) || OTHER;
    context.beginPath();
    context.arc(x, y, 4.5, 0, 7);
    if (entry.correct === false) {
      context.lineWidth = 2;
      context.stroke();
    } else context.fill();
  }
  context.globalAlpha = 1;
  if (dragged) {
    context.strokeStyle = getComputedStyle(places).color;
    context.lineWidth = 1.5;
    context.strokeRect(...dragged.from, dragged.to[0] - dragged.from[0], dragged.to[1] - dragged.from[1]);
  }
  places.dataset.shown = listed.size;
}

/** Return the position of a pointer in pixels of the canvas. */
function pointer(event) {
  const box = places.getBoundingClientRect();
  return [
    ((event.clientX - box.left) * places.width) / box.width,
    ((event.clientY - box.top) * places.height) / box.height,
  ];
}

function finish() {
  const { from, to } = dragged,
    [left, right] = [from[0], to[0]].sort((a, b) => a - b);
  const [top, bottom] = [from[1], to[1]].sort((a, b) => a - b);
  dragged = null;
  if (right - left < NEAR && bottom - top < NEAR) {
    const away = (place) => Math.hypot(position(place)[0] - left, position(place)[1] - top);
    const nearest = DATA.places.reduce((a, b) => (away(a) <= away(b) ? a : b));
    if (away(nearest) <= NEAR * 1.5) {
      const numbers = DATA.places.map(([k]) => k);
      openAmong(numbers, nearest[0]);
    } else select(null);
    return;
  }
  const inside = DATA.places.filter((place) => {
    const [x, y] = position(place);
    return x >= left && x <= right && y >= top && y <= bottom;
  });
  select(new Set(inside.map(([k]) => k)));
}

if (places) {
  places.addEventListener("pointerdown", (event) => {
    dragged = { from: pointer(event), to: pointer(event) };
    places.setPointerCapture(event.pointerId);
  });
  places.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    dragged.to = pointer(event);
    drawPlaces();
  });
  places.addEventListener("pointerup", () => {
    if (dragged) finish();
  });
  places.addEventListener("pointercancel", () => {
    dragged = null;
    drawPlaces();
  });
  for (const [name, count] of frequent) {
    const dot = make("i", { style: `background:${colorOf.get(name)}` });
    $("#legend").append(make("span", {}, dot, `${name} (${count})`));
  }
  const rest = DATA.images.length - frequent.reduce((sum, [, count]) => sum + count, 0);
  if (rest)
    $("#legend").append(make("span", {}, make("i", { style: `background:${OTHER}` }), `other classes (${rest})`));
  if (DATA.images.some((entry) => entry.correct === false))
    $("#legend").append(make("span", { text: "○ wrong prediction" }));
  whenFiltered.push(drawPlaces);
  drawPlaces();
}
