// The "Save" menu of a map.
import { bundle } from "./bundle.js";
import { copyCitations, figureItems, Menu, saveAs } from "./menu.js";
import { encodeNpy } from "../wire.js";
import { png, transparent } from "./figure.js";

/**
 * Create the menu of one map.
 * @param {Record<string, any>} view the `View` of overlay.js
 * @returns {Menu}
 */
export function createSaveMenu(view) {
  const terms = view.props.save;
  const panel = () => ({
    image: view.surface.image,
    rendering: view.final,
    value: view.value,
    opacity: view.tools.opacity.value / 100,
    mapOnly: view.display.chosen === "map",
    bar: view.scale.bar,
    ticks: view.scale.ticks,
    label: view.scale.label,
    drawing: view.scale.drawing.textContent,
  });
  const settings = () => ({
    ...view.binding?.read(),
    colors: view.final.colors,
    limits: [view.final.low, view.final.high],
    smooth: view.final.smooth,
  });
  const name = () => view.value.name,
    file = (suffix, create) => saveAs(name, suffix, create),
    values = () => encodeNpy(view.map.values, [view.map.h, view.map.w]);
  const items = [
    ...figureItems(terms, name, () => [panel()]),
    [...terms.bibtex, () => copyCitations([view.value], terms)],
    [...terms.map, file("-map.png", () => transparent(panel()))],
    [...terms.shown, () => view.png()],
    [...terms.values, file(".npy", values)],
    [
      ...terms.bundle,
      file("-bundle.zip", async () => {
        const piece = { value: view.value, view: settings(), figure: await png([panel()]) };
        return bundle([piece], terms);
      }),
    ],
  ];
  const menu = new Menu(terms, items, () => {
    view.history.back(); // go back to the complete map from a partial one
    const last = menu.entries.at(-1),
      { value } = view;
    last.hidden = !(value && value.record);
    last.disabled = Boolean(value && value.state !== "done");
    last.title = last.disabled ? terms.stopped : terms.bundle[1];
  });
  return menu;
}
