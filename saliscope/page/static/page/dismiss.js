// What closes an open panel below a button.

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
