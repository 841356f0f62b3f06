// Plays the maps from input to output: each map stays for a moment, then fades into the next one.

const HOLD = 600,
  FADE = 300; // milliseconds

export class Player {
  /**
   * @param {{layers: () => number[], show: (layer: number, from: ?number, share: number) => void, end: () => void}} on
   *   the layers to play; `show` draws a map, or a map between two for a share below 1; `end` is called at the end
   */
  constructor(on) {
    this.on = on;
    this.playing = false;
    this.timer = 0;
    this.frame = 0;
    this.stopOutside = (event) => {
      if (!this.root.contains(event.target)) this.stop();
    };
  }

  /** @param {HTMLElement} root the diagram; a click or a key anywhere else stops playing */
  attach(root) {
    this.root = root;
  }

  toggle() {
    if (this.playing) this.stop();
    else this.start();
  }

  start() {
    const layers = this.on.layers();
    if (!layers.length) return;
    this.playing = true;
    for (const name of ["pointerdown", "keydown"]) document.addEventListener(name, this.stopOutside, true);
    this.step(layers, 0);
  }

  stop() {
    if (!this.playing) return;
    this.playing = false;
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    for (const name of ["pointerdown", "keydown"]) document.removeEventListener(name, this.stopOutside, true);
    this.on.end();
  }

  step(layers, k) {
    if (k === layers.length) return this.stop();
    const moves = !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const hold = () => {
      this.on.show(layers[k], null, 1);
      this.timer = setTimeout(() => this.step(layers, k + 1), HOLD);
    };
    if (k && moves) this.fade(layers[k - 1], layers[k], hold);
    else hold();
  }

  fade(from, to, then) {
    const since = performance.now();
    const draw = (now) => {
      const share = (now - since) / FADE;
      if (share >= 1) return then();
      this.on.show(to, from, Math.max(0, share));
      this.frame = requestAnimationFrame(draw);
    };
    this.frame = requestAnimationFrame(draw);
  }
}
