// The network, input to output: blocks with their gradient norms, skip connections, stages with Grad-CAM; chooses the layer.
import { arcs, columns, heights, SIDE, thumbnail } from "./parts.js";
import { inside } from "./inside.js";
import { store, subscribe } from "./store.js";
import { follow, make, painted, short } from "../wire.js";

const BARS = 44;                                         // pixels of the bars, above the line
const ROOM = { none: 4, short: 14, long: 30 };           // and of the arcs above them: none, around one block, around several
const WIDEST = 120;                                      // pixels of a block in a network of few
const PAUSE = 180;                                       // milliseconds that an arrow key may be held before a layer is asked for

export function mount(element, props, trigger, watch) {
  const terms = props.terms, host = element.firstElementChild;
  const title = make("h2", { class: "hl-title", text: terms.title });
  const read = make("p", { class: "hl-rail-read" });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const row = make("div", { class: "hl-rail-row", role: "radiogroup", "aria-label": terms.group });
  const scroll = make("div", { class: "hl-rail-scroll" }, make("div", { class: "hl-rail-track" }, svg, row));
  const below = inside(terms, (layer) => choose(layer), (layer) => say(layer));
  host.append(make("div", { class: "hl-rail-head" }, title, make("p", { class: "hl-quiet", text: terms.legend })), scroll, read, below.root);
  let drawn = null, blocks = [], chosen = null, later = 0, room = 0, owner = null;

  const layers = () => store.network?.layers || [];
  const norms = () => (store.norms.get(store.wanted)?.model === store.network?.model ? store.norms.get(store.wanted) : null);
  const holding = (layer) => store.network.blocks.findIndex((block) => layer >= block.first && layer < block.first + block.count);

  const sentence = (k) => {
    const [name, height, width, channels, kind, why] = layers()[k], found = norms(), block = holding(k);
    const parts = [name, kind];
    const around = layers()[store.network.blocks[block].out][0];
    if (around !== name) parts.push(terms.in_block.replace("{name}", around));
    if (height) parts.push(`${height} × ${width}`);
    if (channels) parts.push(terms.channels.replace("{count}", channels));
    const norm = found?.norms[k];
    if (norm === 0) parts.push(terms.no_gradient.replace("{name}", found.name));
    else if (!found && store.wanted && height) parts.push(terms.measuring);
    else if (norm) parts.push(terms.norm.replace("{norm}", short(norm)).replace("{name}", found.name));
    return parts.join(" · ") + (why ? `. ${why}` : "");
  };
  const say = (k) => {
    const shown = k ?? (chosen === null ? null : chosen);
    const text = !store.network ? terms.loading : shown === null ? "" : sentence(shown);
    read.textContent = k === undefined || k === null ? [text, store.note].filter(Boolean).join(" ") : text;
  };

  const mark = () => {
    chosen = store.network?.names[store.chosen] ?? null;
    const at = chosen === null ? -1 : holding(chosen), focused = row.contains(document.activeElement);
    blocks.forEach((button, k) => {
      const isOut = k === at && store.network.blocks[k].out === chosen;
      button.setAttribute("aria-checked", String(isOut));
      button.classList.toggle("hl-rail-within", k === at && !isOut);
      button.tabIndex = k === Math.max(0, at) ? 0 : -1;
    });
    if (at >= 0 && drawn) {
      below.show(at, chosen, norms());
      if (!focused) reveal(blocks[at]);
    }
    say();
  };
  const reveal = (button) => {
    const left = button.offsetLeft - 24, right = button.offsetLeft + button.offsetWidth + 24;
    if (left < scroll.scrollLeft) scroll.scrollLeft = left;
    else if (right > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = right - scroll.clientWidth;
  };
  const choose = (k, pause = 0) => {
    const [name] = layers()[k], can = layers()[k][7];
    clearTimeout(later);
    if (!can || name === store.chosen) return;
    store.chosen = name;
    mark();
    later = setTimeout(() => trigger("select", { layer: name }), pause);
  };

  const level = () => {                                  // norms as heights; nothing moves but the bars
    const found = norms(), outs = (store.network?.blocks || []).map((block) => block.out);
    const high = found ? heights(outs.map((k) => found.norms[k])) : [];
    blocks.forEach((button, k) => {
      const bar = button.firstElementChild, part = high[k];
      if (found || !store.wanted || !bar.style.height) bar.style.height = `${100 * (part ?? 0.12)}%`;  // former heights stay until the new are there
      button.dataset.norm = part === 0 ? "none" : part ? "known" : "unknown";
      button.setAttribute("aria-label", sentence(outs[k]));
    });
    if (chosen !== null) below.show(holding(chosen), chosen, found);
  };

  const build = () => {
    const network = store.network;
    drawn = network;
    const labels = [];
    let column = 1;
    blocks = network.blocks.map((block) => {
      const [name, , , , , , reason, can] = network.layers[block.out];
      const button = make("button", { type: "button", role: "radio", "data-layer": name, "data-why": reason, "aria-disabled": can ? null : "true",
        tabindex: -1, onclick: () => { button.focus({ preventScroll: true }); choose(block.out); },
        onpointerenter: () => say(block.out), onpointerleave: () => say(), onfocus: () => say(block.out), onblur: () => say() }, make("i", {}));
      return button;
    });
    for (const [first, last, mapped] of network.stages) {
      const start = column, [, height, width] = network.layers[network.blocks[last].out];
      for (let k = first; k <= last; k++, column++) blocks[k].style.gridColumn = column;
      labels.push(label(network, first, last, `${start} / ${column}`, height, width, mapped));
      column++;                                          // the gap
    }
    const longest = Math.max(0, ...network.arcs.map(([start, end]) => end - start));
    room = longest > 1 ? ROOM.long : longest ? ROOM.short : ROOM.none;
    row.style.paddingTop = `${room}px`;
    row.style.maxWidth = `${WIDEST * blocks.length + 100}px`;
    row.replaceChildren(...blocks, ...labels);
    below.draw(network);
    level();
    mark();
    measure();
  };
  const label = (network, first, last, columns, height, width, mapped) => {
    const [name, , , channels] = network.layers[network.blocks[last].out];
    const grid = !height ? "1²" : height === width ? `${height}²` : `${height}×${width}`;
    const maps = make("div", { class: "hl-rail-maps" });
    const text = make("div", { class: "hl-rail-text" }, make("code", { text: name }), make("div", {}, make("span", { text: grid }), make("span", { text: channels ? `×${channels}` : "" })));
    const found = make("div", { class: "hl-rail-stage", "aria-hidden": "true", title: name, onclick: () => choose(network.blocks[last].out) });
    found.append(...(mapped ? [maps] : []), text);
    found.style.gridColumn = columns;
    found.dataset.first = first;
    found.dataset.last = last;
    return found;
  };
  const measure = () => {
    if (!drawn || !scroll.clientWidth) return;
    const [tracks, least] = columns(drawn.stages, scroll.clientWidth - 6);
    row.style.gridTemplateColumns = tracks;
    row.style.minWidth = `${least}px`;
    const spans = blocks.map((button) => [button.offsetLeft, button.offsetLeft + button.offsetWidth]);
    arcs(svg, drawn.arcs, spans, row.offsetWidth, room + BARS, BARS);
    const texts = [...row.querySelectorAll(".hl-rail-text > *")];
    for (const text of texts) text.hidden = false;
    for (const text of texts.filter((each) => each.scrollWidth > each.parentElement.parentElement.clientWidth)) text.hidden = true;
  };
  new ResizeObserver(() => { measure(); if (chosen !== null && blocks.length) reveal(blocks[holding(chosen)]); }).observe(scroll);

  const maps = () => {
    const value = props.value || { stages: [] }, network = store.network;
    for (const stage of row.querySelectorAll(".hl-rail-maps")) stage.replaceChildren();
    if (!network || (owner && owner !== network.model)) return;  // maps of the network before
    const image = value.crop ? new Image() : null;
    for (const stage of value.stages) {
      const k = network.names[stage.layer];
      if (k === undefined) continue;
      const block = holding(k);
      const cell = [...row.querySelectorAll(".hl-rail-stage")].find((each) => block >= each.dataset.first && block <= each.dataset.last);
      const canvas = make("canvas", { width: SIDE, height: SIDE, "data-layer": stage.layer, onclick: (event) => { event.stopPropagation(); choose(k); } });
      cell?.querySelector(".hl-rail-maps")?.append(canvas);
      if (image) image.addEventListener("load", () => thumbnail(canvas, image, stage.map));
      else thumbnail(canvas, image, stage.map);
    }
    if (image) image.src = value.crop.src;
  };

  row.addEventListener("keydown", (event) => {
    const at = blocks.indexOf(document.activeElement), end = blocks.length - 1;
    const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: end }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const next = blocks[Math.max(0, Math.min(end, to))];
    next.focus({ preventScroll: true });
    reveal(next);
    choose(drawn.blocks[blocks.indexOf(next)].out, PAUSE);
  });
  subscribe((changes) => {
    if (changes.network) { if (JSON.stringify(changes.network) !== JSON.stringify(drawn)) { build(); maps(); } }
    else if (drawn) { level(); mark(); }
  });
  if (store.network) build();
  say();
  follow(props, watch, ["value"], () => {
    const since = performance.now(), value = props.value || {};
    if (value.chosen) store.chosen = value.chosen;
    owner = store.network?.model || null;
    maps();
    mark();
    painted(element, value.id, since);
  });
}
