// What stands below a figure: method, class, layer, network and every option, in lines that fit.

/** Words that any file can hold: no control characters, no halves of letters. */
export function words(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\ufffe\uffff]/g, " ").replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

function percent(share) {
  return share >= 0.01 ? `${Math.round(100 * share)}%` : "under 1%";
}

/** The sentences: what the map is, in bold; then its options. */
function sentences({ record, words: said }, name) {
  const first = name ? `${name}: ` : "";
  if (!record) return [[first + (said.title || said.alt), true]];
  const { question, answer } = record, options = Object.entries(question.options || {});
  const whom = answer.reads_class ? ` for ${question.class} (${percent(answer.probability)})` : "";
  const layer = answer.takes_layer ? ` at layer ${question.layer}` : "";
  const plane = question.plane === null || question.plane === undefined ? "" : `, plane ${question.plane}`;
  const stopped = answer.share < 1 ? `, stopped at ${Math.round(100 * answer.share)}%` : "";
  const set = options.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
  return [[`${first}${answer.title}${whom}${layer} of ${answer.model}${plane}${stopped}.`, true], ...(set ? [[`Options: ${set}.`, false]] : [])];
}

/** Lines no wider than `width`; a word that is wider is cut. `name` is that of one map among several. */
export function caption(value, name, width, measure) {
  const lines = [];
  for (const [sentence, strong] of sentences(value, name)) {
    let line = "";
    for (const word of words(sentence).split(/\s+/).filter(Boolean)) {
      const longer = line ? `${line} ${word}` : word;
      if (line && measure(longer, strong) > width) {
        lines.push({ text: line, strong });
        line = word;
      } else line = longer;
      while (line.length > 1 && measure(line, strong) > width) {
        let fits = line.length - 1;
        while (fits > 1 && measure(line.slice(0, fits), strong) > width) fits -= 1;
        lines.push({ text: words(line.slice(0, fits)), strong });
        line = line.slice(fits);
      }
    }
    if (line) lines.push({ text: line, strong });
  }
  return lines;
}
