// The order of search results: the FAQ and guides before pages for developers and measurements.
globalThis.Scorer = {
  score: ([page, , , , score]) => {
    if (/^(faq|start|your_model|troubleshooting)$/.test(page)) return score + 4;
    return /^(architecture|recipes|figures|networks|measurements|faithfulness)$/.test(page) ? score - 4 : score;
  },
  // Sphinx's defaults:
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
