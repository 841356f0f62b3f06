// What a comparison saves: one figure of all its maps, and one bundle.
import { together } from "./saves.js";

/** The maps of a board, or why they cannot be saved now. */
function plates({ panels, opacity }) {
  const shown = panels.map((panel) => ({ panel, name: panel.letter.textContent, value: panel.answer?.value.view }));
  const late = shown.find(({ panel, value }) => panel.pending || panel.old || !panel.plate.look || !value);
  if (late) return `Panel ${late.name} has no finished map of these settings. Wait for it or remove it, then save.`;
  const stopped = shown.find(({ value }) => value.state !== "done");
  if (stopped) return `The map of panel ${stopped.name} was stopped. Compute it again or remove it, then save.`;
  return shown.map(({ panel: { plate }, name, value }) => ({ name, plate: { image: plate.surface.image, look: plate.look, value, opacity,
    alone: false, bar: plate.bar, ends: [...plate.ends.children].map((end) => end.textContent) } }));
}

/** The menu "Save" of a board. */
export function saving(board) {
  const menu = together(() => plates(board));
  menu.button.disabled = false;
  return menu.root;
}
