// The board of the comparison: its panels, what they ask, and how all of them are drawn.
import { remember } from "./address.js";
import { Panel } from "./panel.js";
import { Pair } from "./pair.js";
import { Questions } from "./questions.js";
import { mail } from "./mail.js";
import { Tools } from "./tools.js";
import { follow, make } from "../wire.js";

class Board {
  constructor(element, props, trigger) {
    Object.assign(this, { element, props, trigger, terms: props.terms, panels: [], number: 0, running: new Map() });
    this.questions = new Questions();
    this.grid = make("div", { class: "hl-compare-panels" });
    this.pair = new Pair(this);
    this.tools = new Tools(this);
    element.firstElementChild.replaceChildren(this.tools.element, this.grid, this.pair.element);
    this.add();
    this.add({ own: {}, runner: true, classed: true });
    this.noted = remember(this);
    mail.read((kind, value) => this.read(kind, value));
    new IntersectionObserver(() => this.look()).observe(element);
  }

  get page() {
    return this.questions.page;
  }

  // Panels

  /** A panel that shows what the page shows, or what `from` shows, behind that. */
  add(from = null, asked = false) {
    const free = Array.from({ length: this.props.slots }, (_, k) => k).find((k) => this.panels.every((panel) => panel.slot !== k));
    if (free === undefined) return;
    const panel = new Panel(this, free, from), at = this.panels.indexOf(from);
    this.panels.splice(at < 0 ? this.panels.length : at + 1, 0, panel);
    if (at < 0) this.grid.append(panel.element);
    else from.element.after(panel.element);
    this.settle();
    if (!asked) return;
    this.refresh();
    panel.picks.method.field.focus({ preventScroll: true });
    panel.element.scrollIntoView({ block: "nearest" });
  }

  duplicate(panel) {
    this.add(panel, true);
  }

  remove(panel) {
    const at = this.panels.indexOf(panel);
    this.panels.splice(at, 1);
    panel.end();
    this.settle();
    this.sweep();
    this.draw();
    const next = this.panels[Math.min(at, this.panels.length - 1)];
    (this.panels.length > 1 ? next.drop : this.tools.more).focus();
  }

  /** Two panels alone: the predicted class and the next one, with common limits. */
  predicted() {
    this.tools.limits = "pinned";
    this.restore([{ own: { target: "" }, classed: true }, { own: {}, runner: true, classed: true }]);
  }

  /** These panels instead of all others. */
  restore(panels) {
    for (const panel of this.panels.splice(0)) panel.end();
    for (const each of panels) this.add(each);
    this.refresh();
  }

  /** Letters by place; what can be added or removed. */
  settle() {
    this.panels.forEach((panel, k) => {
      panel.call(String.fromCharCode(65 + k));
      panel.drop.disabled = this.panels.length === 1;
      panel.copy.disabled = this.panels.length === this.props.slots;
    });
    this.tools.more.disabled = this.panels.length === this.props.slots;
    this.grid.dataset.count = this.panels.length;
    this.busy();
  }

  busy() {
    this.tools.saves.enable();
    this.tools.stop.disabled = !this.panels.some((panel) => panel.pending);
  }

  // Questions and answers

  /** What the page sends. */
  read(kind, value) {
    if (kind === "answer") return this.take(value);
    if (kind === "panels") return this.restore(value);
    if (kind === "picture") this.pictured(value.picture);
    else this.questions.settings(value);
    this.stale = true;
    this.mark();
    if (kind === "settings" || !this.page.picture) this.look();
  }

  /** Another picture goes back to its own classes, unless the page's class is pinned or an address brought both. */
  pictured(picture) {
    const before = this.page.picture;
    this.questions.pictured(picture);
    if (!before || !this.page.picture || before === this.page.picture) return;
    if (!this.coming && !document.querySelector("#hl-pin input")?.checked) for (const { own } of this.panels) if (own.target) delete own.target;
    this.coming = false;
  }

  /** The whole form, when the tab is in front and the page has a new answer. */
  seen(value) {
    if (!value || !value.form) return;
    this.pictured(value.form[0]);
    this.questions.form(value.form);
    this.refresh();
  }

  /** Ask anew when the tab is in front, and something has changed since: the page's own answer may take a minute. */
  look() {
    if (this.stale && this.element.checkVisibility() && (this.page.names.model || this.page.picture === "")) this.refresh();
  }

  changed(panel) {
    this.refresh();
    panel.head();
  }

  listed(panel) {
    return this.questions.listed(panel);
  }

  /** Which panels no longer show what they are to show. */
  mark() {
    for (const panel of this.panels) {
      const shown = panel.pending || panel.answer;
      panel.old = Boolean(shown && !this.questions.same(shown.question, this.questions.of(panel)));
      panel.mark();
    }
    this.pair.mark();
    this.busy();
  }

  /** Ask what is not known yet; what was answered before is shown again. */
  refresh() {
    this.stale = false;
    for (const panel of this.panels) {
      panel.old = false;
      const question = this.questions.of(panel), { same } = this.questions;
      if (!this.page.picture) panel.empty();
      else if (panel.answer && same(panel.answer.question, question)) panel.back();
      else if (!(panel.pending && same(panel.pending.question, question))) {
        const known = this.questions.known(question), twin = this.panels.find(({ pending }) => pending && same(pending.question, question));
        if (known) {
          panel.pending = { question };
          this.arrived(panel, known);
        } else if (twin) panel.wait(question, twin.pending.number);
        else this.ask(panel, question);
      }
    }
    this.sweep();
    this.busy();
    this.draw();
  }

  ask(panel, question = this.questions.of(panel)) {
    panel.old = false;
    panel.wait(question, ++this.number);
    this.running.set(panel.slot, this.number);
    this.trigger("submit", { slot: panel.slot, number: this.number, ...this.questions.wire(panel, question) });
    this.busy();
  }

  /** End the work that nobody waits for. Not that of a panel that has asked anew: the server ends it itself. */
  sweep() {
    for (const [slot, number] of this.running) {
      if (this.panels.some(({ pending }) => pending && pending.number === number)) continue;
      this.running.delete(slot);
      this.trigger("focus", { slot });
    }
  }

  /** An answer on its way, for every panel that waits for it. */
  take(value) {
    const panels = this.panels.filter(({ pending }) => pending && pending.number === value.number);
    if (!panels.length) return;
    if (value.state !== "waiting" && value.state !== "partial") this.running.delete(value.slot);
    for (const panel of panels) {
      if (value.state !== "passed") this.arrived(panel, { ...value });
      else {
        panel.pass();
        this.stale = true;
      }
    }
    this.busy();
  }

  async arrived(panel, value) {
    const over = panel.pending.question;
    this.questions.learn(over, value);
    if (await panel.take(value)) this.questions.keep(over, value);
    this.busy();
    this.draw();
  }

  // Drawing, without a request

  /** Whether this map is drawn by the size of its values. */
  magnitudes(map) {
    return this.tools.magnitudes(map);
  }

  draw() {
    const panels = this.panels.filter((panel) => panel.plate.map), whole = panels.filter((panel) => !panel.partial);
    const { limits, style } = this.tools.settle(panels.map((panel) => panel.plate));
    const styled = ({ plate }) => ({ ...style, signed: !this.magnitudes(plate.map) });
    const ranges = limits === "pinned" && whole.length > 1 ? whole.map((panel) => panel.plate.range(styled(panel))) : [];
    const common = ranges.length ? [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))] : null;
    for (const panel of panels) panel.plate.draw({ ...styled(panel), limits: panel.partial ? null : common });
    this.mix();
    this.pair.refresh({ smooth: style.smooth });
    this.busy();
  }

  mix() {
    this.noted?.();
    for (const { plate } of [...this.panels, this.pair]) plate.mix(this.tools.opacity);
  }

  /** The same place of the photograph in all panels. */
  point(x, y = null) {
    for (const { plate } of [...this.panels, this.pair]) plate.point(x, y);
  }
}

export function mount(element, props, trigger, watch) {
  const board = new Board(element, props, trigger);
  follow(props, watch, ["value"], () => board.seen(props.value));
}
