// The comparison board: its panels, their requests, and the shared drawing settings.
import { bindBoard } from "./address.js";
import { Panel } from "./panel.js";
import { Pair } from "./pair.js";
import { Requests } from "./requests.js";
import { Tools } from "./tools.js";
import { keepsTarget, settings, Component } from "../parts.js";
import { follow, state, subscribe, update } from "../store.js";
import { make } from "../wire.js";

class Board extends Component {
  constructor(element, props, trigger) {
    super(element, props, trigger);
    this.terms = { ...props.map, ...props.combobox, ...props.terms };
    this.panels = [];
    this.received = {};
    this.unsent = new Map(); // messages of panels, by slot; the server limits the waiting requests of a visitor
    this.inLine = new Map(); // numbers of the requests that the server has not started, by slot
    this.running = new Map(); // numbers of all sent requests, by slot
    this.number = Date.now(); // larger than the numbers of an earlier board: the server ignores smaller ones
    this.requests = new Requests();
    this.grid = make("div", { class: "hl-compare-panels" });
    this.pair = new Pair(this);
    this.tools = new Tools(this);
    this.root.replaceChildren(this.tools.element, this.grid, this.pair.element);
    this.add();
    this.add({ own: {}, runner: true, classed: true });
    this.bound = bindBoard(this);
    subscribe(["imagePath"], () => this.readImage());
    if (state.imagePath !== undefined) this.readImage();
    follow("question", () => this.readQuestion());
    subscribe(["waiting"], () => this.draw());
    follow("compared", () => this.readAnswers());
    follow("comparison", () => state.comparison && this.readPanels());
    new IntersectionObserver(() => this.refreshIfVisible()).observe(element);
  }

  get page() {
    return this.requests.page;
  }

  // Panels

  /** Add a panel with the next likely class if classes are compared, or else with a method of another family. */
  propose() {
    const names = (key) => this.panels.map(({ latest, own }) => own[key] || latest?.names?.[key]),
      [methods, classes] = [names("method"), names("target")].map((each) => new Set(each));
    const explained = new Set(this.panels.map(({ latest }) => latest?.name).filter(Boolean)),
      listed = this.requests.listed(this.panels[0]).method || [],
      known = listed.filter(([, , , more]) => !more?.why).map(([, name]) => name);
    const method = this.terms.proposals.find((name) => !methods.has(name) && known.includes(name)),
      target = state.likely.find(({ name }) => !classes.has(name) && !explained.has(name))?.name;
    const comparesClasses = methods.size === 1 && this.panels.length > 1 && explained.size > 1;
    if (target && (comparesClasses || !method)) this.add({ own: { target }, classed: true }, true);
    else this.add(null, true, method ? { method } : {});
  }

  /** Add a panel that shows what the page shows, or a copy of `from` right after it. */
  add(from = null, focus = false, own = {}) {
    const free = Array.from({ length: this.props.slots }, (_, k) => k).find((k) =>
      this.panels.every((panel) => panel.slot !== k),
    );
    if (free === undefined) return;
    const panel = new Panel(this, free, from),
      at = this.panels.indexOf(from);
    Object.assign(panel.own, own);
    this.panels.splice(at < 0 ? this.panels.length : at + 1, 0, panel);
    if (at < 0) this.grid.append(panel.element);
    else from.element.after(panel.element);
    this.relabel();
    if (!focus) return;
    this.refresh();
    panel.picks.method.field.focus({ preventScroll: true });
    panel.element.scrollIntoView({ block: "nearest" });
  }

  remove(panel) {
    const at = this.panels.indexOf(panel);
    this.panels.splice(at, 1);
    panel.end();
    this.relabel();
    this.cancelUnused();
    this.draw();
    const next = this.panels[Math.min(at, this.panels.length - 1)];
    (this.panels.length > 1 ? next.removeButton : this.tools.more).focus();
  }

  /** Show only two panels with common limits: the predicted class and the runner-up. */
  comparePredictions() {
    this.tools.limits = "pinned";
    this.restore([
      { own: { target: "" }, classed: true },
      { own: {}, runner: true, classed: true },
    ]);
  }

  /** Replace all panels. */
  restore(panels) {
    for (const panel of this.panels.splice(0)) panel.end();
    for (const each of panels) this.add(each);
    this.refresh();
  }

  /** Assign letters by position, and enable or disable adding and removing panels. */
  relabel() {
    this.panels.forEach((panel, k) => {
      panel.setLetter(String.fromCharCode(65 + k));
      panel.removeButton.disabled = this.panels.length === 1;
      panel.copyButton.disabled = this.panels.length === this.props.slots;
    });
    this.tools.more.disabled = this.panels.length === this.props.slots;
    this.grid.dataset.count = String(this.panels.length);
    this.updateButtons();
  }

  updateButtons() {
    this.pair.mark();
    this.tools.saves.enable();
    this.tools.stop.disabled = !this.panels.some((panel) => panel.pending);
  }

  // Requests and answers

  readImage() {
    this.setImage(state.imagePath);
    this.stale = true;
    this.mark();
    if (this.page.image) return;
    if (this.panels.some((panel) => panel.pending)) this.stop();
    this.refreshIfVisible();
  }

  readQuestion() {
    const { names, options } = state.question;
    Object.assign(this.page, { names, options, bands: settings().bands });
    this.stale = true;
    this.mark();
    this.refreshIfVisible();
  }

  readAnswers() {
    for (const [slot, value] of Object.entries(state.compared)) {
      if (this.received[slot] === value) continue;
      this.received[slot] = value;
      this.take(value);
    }
  }

  readPanels() {
    this.restore(state.comparison);
    update({ comparison: null });
    this.element.scrollIntoView({ block: "start" });
  }

  /** A new image resets the panels' classes, unless the page's class is pinned or an address set both. */
  setImage(image) {
    const before = this.page.image;
    this.page.image = image;
    if (!before || !this.page.image || before === this.page.image) return;
    if (!this.coming && !keepsTarget()) this.forgetTargets();
    this.coming = false;
  }

  /** Forget the classes of the panels. The first one that would then equal another shows the runner-up instead. */
  forgetTargets() {
    const named = this.panels.filter(({ own }) => own.target),
      requestOf = (panel) => ({ ...this.requests.forPanel(panel), target: "" });
    for (const { own } of named) delete own.target;
    if (this.panels.some(({ runner }) => runner)) return;
    const isTwin = (one) =>
      this.panels.some((other) => other !== one && this.requests.isEqual(requestOf(other), requestOf(one)));
    const twin = named.find(isTwin);
    if (twin) twin.runner = true;
  }

  /** Refresh if the tab is visible and something has changed: the page's own answer may take a minute. */
  refreshIfVisible() {
    if (this.stale && this.element.checkVisibility() && (this.page.names.model || this.page.image === ""))
      this.refresh();
  }

  changed(panel) {
    this.refresh();
    panel.head();
  }

  /** Mark the panels whose map no longer matches their settings. */
  mark() {
    for (const panel of this.panels) {
      const shown = panel.pending || panel.answer;
      panel.old = Boolean(shown && !this.requests.isEqual(shown.request, this.requests.forPanel(panel)));
      panel.mark();
    }
    this.updateButtons();
  }

  /** Request the missing answers; known answers are shown again. */
  refresh() {
    this.stale = false;
    for (const panel of this.panels) {
      panel.old = false;
      const request = this.requests.forPanel(panel),
        { isEqual } = this.requests;
      if (!this.page.image) panel.empty();
      else if (panel.answer && isEqual(panel.answer.request, request)) panel.back();
      else if (!(panel.pending && isEqual(panel.pending.request, request))) {
        const known = this.requests.find(request),
          twin = this.panels.find(({ pending }) => pending?.number && isEqual(pending.request, request));
        if (known) {
          panel.pending = { request };
          this.handleAnswer(panel, known);
        } else if (twin) panel.wait(request, twin.pending.number);
        else this.sendRequest(panel, request);
      }
    }
    this.cancelUnused();
    this.updateButtons();
    this.draw();
  }

  sendRequest(panel, request = this.requests.forPanel(panel)) {
    panel.old = false;
    panel.wait(request, ++this.number);
    this.unsent.set(panel.slot, { slot: panel.slot, number: this.number, ...this.requests.toWire(panel, request) });
    this.sendNext();
    this.updateButtons();
  }

  /** Send requests while few of them wait at the server; a newer request of a panel takes the place of its old one. */
  sendNext() {
    for (const [slot, message] of this.unsent) {
      if (this.inLine.size >= this.props.at_once && !this.inLine.has(slot)) continue;
      this.unsent.delete(slot);
      this.inLine.set(slot, message.number);
      this.running.set(slot, message.number);
      this.trigger("submit", message);
    }
  }

  /** Cancel work that no panel waits for, except for panels with a newer request: the server cancels those itself. */
  cancelUnused() {
    const isUnused = (number) => !this.panels.some(({ pending }) => pending && pending.number === number);
    for (const [slot, { number }] of this.unsent) if (isUnused(number)) this.unsent.delete(slot);
    for (const [slot, number] of this.running) {
      if (!isUnused(number)) continue;
      this.running.delete(slot);
      this.inLine.delete(slot);
      this.trigger("stop", { slot });
    }
    this.sendNext();
  }

  /** Stop all panels; the server shows their best maps so far. */
  stop() {
    const unsent = [...this.unsent.values()];
    this.unsent.clear();
    this.trigger("stop", {});
    for (const { slot, number } of unsent)
      this.take({ slot, number, state: "halted", parts: [{ text: this.terms.stopped }], fraction: null });
  }

  /** Handle a partial or final answer for every panel that waits for it. */
  take(value) {
    if (value.state !== "waiting" && this.inLine.get(value.slot) === value.number) {
      this.inLine.delete(value.slot);
      this.sendNext();
    }
    const panels = this.panels.filter(({ pending }) => pending && pending.number === value.number);
    if (!panels.length) return;
    if (value.state !== "waiting" && value.state !== "partial") this.running.delete(value.slot);
    for (const panel of panels) {
      if (value.state !== "passed") this.handleAnswer(panel, value);
      else {
        panel.markStale();
        this.stale = true;
      }
    }
    this.updateButtons();
  }

  async handleAnswer(panel, value) {
    const over = panel.pending.request;
    this.requests.learn(over, value);
    for (const { picks } of this.panels) for (const list of Object.values(picks)) list.refresh();
    this.requests.keep(over, value);
    await panel.take(value);
    this.updateButtons();
    this.draw();
  }

  // Drawing, without a request

  draw() {
    const panels = this.panels.filter((panel) => panel.mapView.map),
      whole = panels.filter((panel) => !panel.partial);
    const mapOf = ({ mapView }) => mapView.map;
    for (const panel of panels) {
      const alike = panels.filter((other) => other.kind === panel.kind),
        style = this.tools.style(alike.map(mapOf)),
        styleOf = (map) => ({ ...style, signed: !this.tools.magnitudes(map) });
      const mates = this.tools.shared ? alike.filter((other) => whole.includes(other)) : [panel];
      const views = panel.partial ? [panel.mapView] : mates.map(({ mapView }) => mapView),
        limits = panel.mapView.limitsAmong(views, styleOf);
      panel.mapView.draw({ ...styleOf(panel.mapView.map), limits });
      panel.sayRange(limits ? mates : []);
    }
    this.mix();
    this.pair.refresh({ smooth: this.tools.smooth.checked });
    this.updateButtons();
  }

  mix() {
    this.bound?.();
    for (const { mapView } of [...this.panels, this.pair]) mapView.mix(this.tools.opacity);
  }

  /** Point at the same position of the image in all panels. */
  point(x, y = null) {
    for (const { mapView } of [...this.panels, this.pair]) mapView.point(x, y);
  }
}

/** @type {import("../parts.js").Mount} */
export function mount(element, props, trigger) {
  new Board(element, props, trigger);
}
