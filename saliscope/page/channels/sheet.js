// The tiles and statistics of a layer's channels, as they arrive from the server.
import { Tiles } from "../drawing/tiles.js";
import { change, state } from "../store.js";
import { floats } from "../wire.js";

/** The images of the tiles. */
export const tiles = new Tiles();

const key = (value) => Math.max(state.channels.key, Number(value?.key) || 0);

/** Add tiles: for other channels, or more for the same layer. Returns whether they belong to another layer. */
export function addTiles(value) {
  const { sheet } = state.channels,
    same = sheet?.about === value.about;
  const sameGrid = String(sheet?.grid) === String(value.grid);
  if (!same) tiles.reset({ cell: value.cell, range: value.range, signed: value.range[0] < 0 });
  tiles.add(value);
  const known = ["mean", "highest", "sparsity"].filter((name) => value[name]); // one cell has no sparsity
  const added = {
    ...value,
    measures: same && sheet.whom === value.whom ? sheet.measures : {},
    figures: Object.fromEntries(known.map((name) => [name, floats(value[name])])),
    size: Math.max(value.numbers.length, same ? sheet.size : 0),
  };
  change("channels", { sheet: added, key: key(value), here: sameGrid ? state.channels.here : null });
  return !same;
}

/** Keep the tiles for another answer; measures depend on the class. */
export function keepTiles(value) {
  const { sheet } = state.channels,
    { whom } = value;
  const kept = sheet && sheet.whom !== whom ? { ...sheet, whom, measures: {} } : sheet;
  change("channels", { sheet: kept, key: key(value) });
}

/** Add a measure of all channels, unless other channels are shown by now. */
export function addMeasure(value) {
  const { sheet } = state.channels;
  if (sheet?.about !== value.about || sheet.whom !== value.whom) return;
  const measure = { note: value.note, cell: value.cell, values: floats(value.values) };
  change("channels", { sheet: { ...sheet, measures: { ...sheet.measures, [value.kind]: measure } } });
}

/** Remove all tiles: there is no image. */
export function clearTiles(value) {
  change("channels", { sheet: null, order: [], key: key(value) });
}
