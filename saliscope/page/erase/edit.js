// An edit as text, as in saliscope/compute/erase/edit.py, and as the values of the controls.

/**
 * @typedef {object} Edit
 * @property {string[]} region operations of the region, as text
 * @property {string} fill
 * @property {Object<string, string>} whole changes of the whole image by field of the form; missing: no change
 */

const NUMBERS = ["rotate", "brightness", "contrast", "noise", "jpeg"];
const REGION = /^(un)?(brush|box)\.|^top\.|^first\.|^invert$/;

/** @returns {Edit} unknown parts are kept in the region, so that the server can report them */
export function parseEdit(text) {
  const edit = { region: [], fill: "blur", whole: {} };
  for (const token of text.split("_").filter(Boolean)) {
    const [name, ...fields] = token.split("."),
      value = fields.join(".");
    if (REGION.test(token)) edit.region.push(token);
    else if (name === "fill") edit.fill = value;
    else if (name === "flip") for (const axis of value) edit.whole[`flip_${axis}`] = "1";
    else if (name === "shift") [edit.whole.right, edit.whole.down] = fields;
    else if (NUMBERS.includes(name)) edit.whole[name] = value;
    else edit.region.push(token);
  }
  return edit;
}

/** @param {Edit} edit */
export function textOf({ region, fill, whole }) {
  const flips = ["x", "y"].filter((axis) => whole[`flip_${axis}`]).join("");
  const tokens = [
    ...region,
    ...(region.length && fill !== "blur" ? [`fill.${fill}`] : []),
    ...(flips ? [`flip.${flips}`] : []),
    ...(whole.right || whole.down ? [`shift.${whole.right || 0}.${whole.down || 0}`] : []),
    ...NUMBERS.filter((name) => whole[name]).map((name) => `${name}.${whole[name]}`),
  ];
  return tokens.join("_");
}
