// The side on which a panel of a button opens.

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
