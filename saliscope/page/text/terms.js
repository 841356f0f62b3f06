// Words of the glossary explain themselves: hover, focus or tap shows one or two sentences above everything else.
import { make } from "../wire.js";

const MARGIN = 8, // CSS pixels to the word and to the edge of the window
  PAUSE = 120; // milliseconds before a tip opens or closes under the pointer
const TAKEN = "button, a, label, summary, select, textarea, [role=button], [role=img], [aria-hidden=true]",
  NAMES = "code, strong, td, th"; // of classes, layers and models

const waiting = []; // until the glossary is set
let glossary = {},
  pattern = null,
  tip = null;

const idOf = (word) => `hl-word-${word.replace(/\W+/g, "-")}`;

/** Return the expression that finds the words in a text, the longest first; "%" stands for a percentage. */
function compile(words) {
  const escaped = words
    .sort((a, b) => b.length - a.length)
    .map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace("%", "<?[\\d.]+%"));
  return new RegExp(`(?<!\\w)(?:${escaped.join("|")})(?:e?s)?(?!\\w)`, "giu");
}

/** Return the word of the glossary that a text is a form of. */
function wordOf(text) {
  const plain = text.replace(/<?[\d.]+%/, "%").toLowerCase(),
    isForm = (word) => ["", "s", "es"].some((ending) => `${word}${ending}`.toLowerCase() === plain);
  return Object.keys(glossary).find(isForm);
}

/** Create a word with its meaning: a span, because the text of a button would not wrap with the sentence. */
function makeTerm(text, word) {
  const more = { tabindex: 0, "data-term": word, "aria-describedby": idOf(word) },
    onclick = ({ currentTarget }) => tip.click(currentTarget);
  return make("span", { class: "hl-term", role: "button", text, onclick, ...more });
}

/** Replace the words of a text node that are not in `known` by terms. */
function markNode(node, known) {
  const text = node.nodeValue,
    parts = [];
  let end = 0;
  for (const { 0: found, index } of text.matchAll(pattern)) {
    const word = wordOf(found);
    if (!word || known.has(word)) continue;
    known.add(word);
    parts.push(text.slice(end, index), makeTerm(found, word));
    end = index + found.length;
  }
  if (parts.length) node.replaceWith(...parts, text.slice(end));
}

/** Mark the first occurrence of each word below `root`. */
function mark(root) {
  const known = new Set([...root.querySelectorAll(".hl-term")].map((term) => term.dataset.term)),
    walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT),
    nodes = [];
  while (walker.nextNode())
    if (!walker.currentNode.parentElement.closest(`${TAKEN}, ${NAMES}`)) nodes.push(walker.currentNode);
  for (const node of nodes) markNode(node, known);
}

/**
 * Explain the words of the glossary in an element, also after its text has changed.
 * @param {Element} root
 */
export function explain(root) {
  const update = () => {
    if (!pattern) return;
    mark(root);
    observer.takeRecords(); // of the terms
    tip?.place(); // its word may be gone
  };
  const observer = new MutationObserver(update);
  observer.observe(root, { childList: true, characterData: true, subtree: true });
  if (pattern) update();
  else waiting.push(update);
}

/**
 * Explain a button by a word: its tip opens on hover and focus, and a click is only that of the button.
 * @param {Element} button
 * @param {string} word of the glossary
 */
export function explainButton(button, word) {
  button.dataset.term = word;
  button.setAttribute("aria-describedby", idOf(word));
}

/** The box with the meaning of the word under the pointer or the focus. */
class Tip {
  constructor() {
    this.box = make("div", { class: "hl-tip", role: "tooltip", popover: "manual" });
    this.term = null;
    this.timer = 0;
    (document.querySelector("main") || document.body).append(this.box); // within a landmark
    const on = (name, act) => document.addEventListener(name, act, true);
    on("pointerover", (event) => event.pointerType === "mouse" && this.hover(event.target));
    on("focusin", (event) => this.focus(event.target));
    on("pointerdown", (event) => this.press(event));
    on("keydown", (event) => this.key(event));
    on("scroll", (event) => event.target !== this.box && this.place());
    window.addEventListener("resize", () => this.close());
  }

  later(act) {
    clearTimeout(this.timer);
    this.timer = setTimeout(act, PAUSE);
  }

  hover(target) {
    const term = target.closest?.("[data-term]");
    if (term && term !== this.term) this.later(() => this.open(term));
    else if (term || this.box.contains(target)) clearTimeout(this.timer);
    else this.later(() => document.activeElement !== this.term && this.close());
  }

  focus(target) {
    if (target.matches("[data-term]")) this.open(target);
    else this.close();
  }

  /** A press elsewhere closes the tip. A tap opens it, and a second one closes it. */
  press({ target, pointerType }) {
    this.tapped = pointerType === "mouse" ? null : this.term;
    if (!target.closest?.("[data-term]") && !this.box.contains(target)) this.close();
  }

  click(term) {
    if (term === this.tapped) this.close();
    else this.open(term);
    this.tapped = null;
  }

  key(event) {
    if ((event.key === "Enter" || event.key === " ") && event.target.matches(".hl-term")) {
      event.preventDefault();
      return this.open(event.target);
    }
    if (event.key !== "Escape" || !this.term) return;
    event.preventDefault();
    event.stopPropagation(); // what is open below the tip stays open
    this.close();
  }

  open(term) {
    clearTimeout(this.timer);
    if (!term.isConnected) return;
    this.term = term;
    this.box.textContent = glossary[term.dataset.term];
    this.box.showPopover();
    this.place();
  }

  close() {
    clearTimeout(this.timer);
    this.term = null;
    this.box.hidePopover();
  }

  /** Place the box below the word, or above it if it only fits there. */
  place() {
    if (!this.term) return;
    if (!this.term.isConnected || !this.term.checkVisibility()) return this.close();
    const { left, top, bottom } = this.term.getBoundingClientRect(),
      { offsetWidth: width, offsetHeight: height } = this.box;
    if (bottom < 0 || top > window.innerHeight) return this.close();
    const below = bottom + MARGIN,
      isAbove = below + height > window.innerHeight && top > height + MARGIN;
    const right = document.documentElement.clientWidth - width - MARGIN;
    this.box.style.left = `${Math.max(MARGIN, Math.min(left, right))}px`;
    this.box.style.top = `${isAbove ? top - height - MARGIN : below}px`;
  }
}

/**
 * Set the words and their meanings, once. Screen readers find each meaning in a hidden element.
 * @param {Object<string, string>} words
 */
export function setGlossary(words) {
  if (pattern) return;
  glossary = words;
  pattern = compile(Object.keys(words));
  const meanings = Object.entries(words).map(([word, text]) => make("p", { id: idOf(word), text }));
  document.body.append(make("div", { id: "hl-words", hidden: true }, ...meanings));
  tip = new Tip();
  for (const update of waiting.splice(0)) update();
}
