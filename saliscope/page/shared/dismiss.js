// What closes an open panel of a button, and on which side it opens.

/**
 * Call `close` when the user leaves an open panel: by Escape, which returns the focus to its button, by moving the
 * focus elsewhere, or by a press outside.
 * @param {HTMLElement} root contains the button and the panel
 * @param {HTMLButtonElement} button
 * @param {HTMLElement} panel
 * @param {() => void} close
 */
export function dismiss(root, button, panel, close) {
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || panel.hidden) return;
    event.preventDefault();
    close();
    button.focus();
  });
  root.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !root.contains(event.relatedTarget)) close();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!root.contains(event.target)) close();
  });
}

/**
 * Open a panel below its button, or above it if it only fits there, within the width of the window.
 * @param {HTMLElement} panel visible; its style follows `data-up` and `data-end`
 */
export function placePanel(panel) {
  panel.removeAttribute("data-up");
  panel.removeAttribute("data-end");
  const { bottom, right, height } = panel.getBoundingClientRect(),
    button = panel.parentElement.getBoundingClientRect();
  panel.toggleAttribute("data-up", bottom > window.innerHeight && button.top > height);
  panel.toggleAttribute("data-end", right > document.documentElement.clientWidth);
  panel.scrollIntoView({ block: "nearest" }); // on a phone, it may fit on neither side
}
