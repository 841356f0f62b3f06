// A panel below its button, above the rest of the page; on a phone, a sheet over the full page width.

const GAP = 8,
  WIDE = 688,
  TALL = 600,
  NARROW = 768;

export class Panel {
  /**
   * @param {HTMLButtonElement} button
   * @param {HTMLElement} box
   * @param {() => void} opened called after the panel is shown
   */
  constructor(button, box, opened) {
    Object.assign(this, { button, box, opened, isOpen: false });
    document.addEventListener(
      "pointerdown",
      (event) => {
        if (this.isOpen && !box.contains(event.target) && !button.contains(event.target)) this.close();
      },
      true,
    );
    box.addEventListener("focusout", (event) => {
      const next = event.relatedTarget; // null if the window loses focus, or no element receives it
      if (this.isOpen && next && !box.contains(next) && next !== button) this.close();
    });
    for (const name of ["resize", "scroll"]) {
      window.addEventListener(
        name,
        (event) => {
          if (this.isOpen && !box.contains(event.target)) this.place();
        },
        true,
      );
    }
  }

  toggle() {
    if (this.isOpen) this.close(true);
    else this.open();
  }

  open() {
    if (this.isOpen) return;
    this.isOpen = true;
    this.box.hidden = false;
    this.box.showPopover?.();
    this.button.setAttribute("aria-expanded", "true");
    this.place();
    this.opened();
  }

  /** Hide the panel; `back` returns the focus to the button. */
  close(back = false) {
    if (!this.isOpen) return;
    this.isOpen = false;
    if (back) this.button.focus({ preventScroll: true });
    this.box.hidePopover?.();
    this.box.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
  }

  /** Position the panel below the button, or above it if there is more space. */
  place() {
    const sheet = window.innerWidth < NARROW;
    this.box.toggleAttribute("data-sheet", sheet);
    if (sheet) return this.box.removeAttribute("style");
    const at = this.button.getBoundingClientRect(),
      width = Math.min(WIDE, window.innerWidth - 2 * GAP);
    const below = window.innerHeight - at.bottom - 2 * GAP,
      above = at.top - 2 * GAP,
      down = below >= Math.min(TALL, 360) || below >= above;
    const left = Math.max(GAP, Math.min(at.left, window.innerWidth - width - GAP));
    const side = down ? `top:${at.bottom + GAP / 2}px` : `bottom:${window.innerHeight - at.top + GAP / 2}px`;
    const height = Math.max(200, Math.min(TALL, down ? below : above));
    this.box.style.cssText = `left:${left}px;width:${width}px;${side};height:${height}px`;
    return undefined;
  }
}
