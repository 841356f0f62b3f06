// The state that several parts of the page share.

/**
 * The resolved request of the page. It arrives before its answer.
 * @typedef {object} Question
 * @property {number} id larger than the ids of all earlier requests and answers
 * @property {string} key identifies requests with the same answer; empty if nothing is explained
 * @property {string} subject image and class, for which methods can be ranked
 * @property {{model: string, layer: string, target: string, method: string}} names
 * @property {any} options options of the method by name
 * @property {Object<string, string>} unused why the map does not depend on a setting, by setting
 * @property {Object<string, string>} address the request as parameters of the address
 */

/**
 * What the network diagram shows.
 * @typedef {object} Rail
 * @property {?string} chosen name of the selected layer
 * @property {?string} wanted key of the gradient norms of the current request; empty if nothing is explained
 * @property {string} note a note on the selected layer
 * @property {Map<string, {key: string, model: string, name: string, norms: ?number[]}>} norms gradient norms by key
 */

/**
 * The map of another layer that is shown on the large image for a moment.
 * @typedef {object} Preview
 * @property {string} layer
 * @property {string} text states that it is a preview, with its method, class, layer and size
 * @property {string} unit
 * @property {{field: any}} step the map; the overlay stores its drawing here
 * @property {?{field: any}} before the map from which it fades
 * @property {number} share from 0 to 1, how far it has faded
 */

/**
 * What the Channels view shows.
 * @typedef {object} Channels
 * @property {?any} sheet statistics and tiles of the layer, see channels.js
 * @property {number} key id of the answer that the tiles belong to
 * @property {number[]} order listed channels
 * @property {?number} number the open channel
 * @property {boolean} closed whether the user has closed the open channel
 * @property {boolean} selecting whether a click selects a channel instead of opening it
 * @property {number[]} selected selected channels in ascending order
 * @property {?number[]} here the cell [row, column] that was clicked on the large map
 */

/**
 * @typedef {object} State
 * @property {?Question} question
 * @property {?{image: ?string, src: string}} image the page's image: "example:NAME" or its path, and what is displayed
 * @property {string} [imagePath] the same as a text, "" without one, undefined before it is known
 * @property {number} asked number of the newest question
 * @property {boolean} waiting whether this question is not resolved yet: everything that is shown belongs to a former one
 * @property {string} phase what the status is about: idle, busy, landing, done, stopped or error
 * @property {?{src: string, name: string}} download a file to save
 * @property {string} labPart id of the selected part of the lab
 * @property {number} explained how often Explain was pressed
 * @property {string} example id of the selected example image
 * @property {?{key: string}} answered the newest answer, by its id as text
 * @property {Object<string, number>} drawn ids of the answers that parts show, by part
 * @property {Object<string, ?{row: number, column: number}>} cells selected cells of maps, by part
 * @property {Object<string, ?number[]>} fields boxes over maps (left, top, right, bottom from 0 to 1), by part
 * @property {{label: string, value: string}[]} classes the classes of the network, in the order of its outputs
 * @property {{name: string, text: string}[]} likely the most likely classes, most likely first, and their scores
 * @property {?any} crop the crop of the image that the network receives, with its position in the image
 * @property {?{of: number, items: any[], crop: any}} smallMaps maps of the most likely classes
 * @property {?any} network structure of the network, see saliscope/compute/rail/network.py
 * @property {?any} gradients the newest message on gradient norms: what to measure, norms, or an error
 * @property {?any} description sizes and costs of the layers of a network, or an error
 * @property {Rail} rail
 * @property {?Preview} preview
 * @property {Channels} channels
 * @property {Object<number, any>} compared newest answers of the comparison's panels, by slot
 * @property {?{files: File[], at: number}} steps images of a batch, and which of them the page explains
 * @property {?{model?: string, title?: string, gone?: string}} indexed the network of the index of the images of a
 *   batch, or why the index was removed
 * @property {string[]} uploaded server paths of the images of a batch, once all are uploaded
 * @property {?any[]} comparison panels that the comparison has yet to show
 * @property {string} erasing the edit with which another view opens the erase view
 * @property {?{headline: string[], isOld: boolean}} edited the sentences about the edited image of the erase view
 * @property {?{key: string, sentence: string, headline: string[]}} checked verdict on the newest tested map
 * @property {string} view id of the selected tab
 */

/** @type {State} Change it only with `update` and `change`. */
export const state = {
  question: null,
  imagePath: undefined,
  image: null,
  asked: 0,
  waiting: false,
  phase: "idle",
  download: null,
  labPart: "",
  explained: 0,
  example: "",
  answered: null,
  drawn: {},
  cells: {},
  fields: {},
  classes: [],
  likely: [],
  crop: null,
  smallMaps: null,
  network: null,
  gradients: null,
  description: null,
  rail: { chosen: null, wanted: null, note: "", norms: new Map() },
  preview: null,
  channels: { sheet: null, key: 0, order: [], number: null, closed: false, selecting: false, selected: [], here: null },
  compared: {},
  comparison: null,
  erasing: "",
  edited: null,
  checked: null,
  view: "",
  steps: null,
  indexed: null,
  uploaded: [],
};

const listeners = new Map(); // sets of functions by key

/**
 * Set values of the state, and call the listeners of those that differ.
 * @param {Partial<State>} values
 */
export function update(values) {
  const changed = Object.keys(values).filter((key) => state[key] !== values[key]);
  Object.assign(state, values);
  for (const listener of new Set(changed.flatMap((key) => [...(listeners.get(key) || [])]))) listener();
}

/**
 * Replace some fields of an object in the state.
 * @param {string} key name of a value that is an object
 * @param {Record<string, any>} fields
 */
export function change(key, fields) {
  update({ [key]: { ...state[key], ...fields } });
}

/**
 * Call `listener` after changes of a value, and now if it has one.
 * @param {keyof State} key
 * @param {() => void} listener
 */
export function follow(key, listener) {
  subscribe([key], listener);
  if (state[key]) listener();
}

/**
 * Call `listener` after changes of these values.
 * @param {(keyof State)[]} keys
 * @param {() => void} listener
 */
export function subscribe(keys, listener) {
  for (const key of keys) listeners.set(key, (listeners.get(key) || new Set()).add(listener));
}
