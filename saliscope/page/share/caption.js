// The caption of a figure, in lines that fit.

/**
 * Remove what files cannot store: control characters and unpaired surrogates.
 * @param {string} text
 */
export function sanitizeText(text) {
  return String(text)
    .replace(/[\p{Cc}\ufffe\uffff]/gu, " ")
    .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

/**
 * Wrap the sentences of a caption to lines of at most `width` pixels: the first sentence in bold, long words split.
 * @param {string[]} sentences
 * @param {string | undefined} name name of the map among several
 * @param {number} width
 * @param {(text: string, strong: boolean) => number} measure
 * @returns {{text: string, strong: boolean}[]}
 */
export function caption(sentences, name, width, measure) {
  const lines = [];
  for (const [k, sentence] of sentences.entries()) {
    const strong = k === 0;
    let line = "";
    for (const word of sanitizeText(strong && name ? `${name}: ${sentence}` : sentence)
      .split(/\s+/)
      .filter(Boolean)) {
      const longer = line ? `${line} ${word}` : word;
      if (line && measure(longer, strong) > width) {
        lines.push({ text: line, strong });
        line = word;
      } else line = longer;
      while (line.length > 1 && measure(line, strong) > width) {
        let fits = line.length - 1;
        while (fits > 1 && measure(line.slice(0, fits), strong) > width) fits -= 1;
        lines.push({ text: sanitizeText(line.slice(0, fits)), strong });
        line = line.slice(fits);
      }
    }
    if (line) lines.push({ text: line, strong });
  }
  return lines;
}
