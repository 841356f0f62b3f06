// Plays the maps from input to output: each map stays for a moment, then fades into the next one.

const HOLD = 600,
  FADE = 300; // milliseconds

export class Player {
  /**
   * @param {{layers: () => number[], show: (layer: number, from: ?number, share: number) => void, end: () => void}} on
   *   the layers to play; `show` draws a map, or a map between two for a share below 1; `end` is called at the end
   * @param {HTMLElement} root the diagram; a click or a key anywhere else stops playing
   */
  constructor(on, root) {
    this.on = on;
    this.root = root;
    this.ended = null; // while it is playing
  }

  get playing() {
    return this.ended !== null;
  }

  toggle() {
    if (this.playing) this.stop();
    else this.start();
  }

  async start() {
    const layers = this.on.layers();
    if (!layers.length) return;
    const { signal } = (this.ended = new AbortController()),
      moves = !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    for (const name of ["pointerdown", "keydown"])
      document.addEventListener(name, ({ target }) => this.root.contains(target) || this.stop(), {
        capture: true,
        signal,
      });
    for (const [k, layer] of layers.entries()) {
      if (k && moves) await this.fade(layers[k - 1], layer, signal);
      if (signal.aborted) return;
      this.on.show(layer, null, 1);
      await new Promise((resolve) => setTimeout(resolve, HOLD));
    }
    if (!signal.aborted) this.stop();
  }

  stop() {
    if (!this.playing) return;
    this.ended.abort();
    this.ended = null;
    this.on.end();
  }

  async fade(from, to, signal) {
    const since = performance.now();
    for (let share = 0; share < 1 && !signal.aborted;) {
      this.on.show(to, from, share);
      const now = await new Promise(requestAnimationFrame);
      share = Math.max(0, (now - since) / FADE);
    }
  }
}
