"""Compare two runs: changed predictions, accuracies, and agreement of maps.

`pairing` finds the images that both runs have, `comparing` compares their rows in batches, `agreement` compares the
part of the maps that both networks received, `statistics` has the tests and intervals. `texts` has the sentences for
the page and the terminal, and `page` writes both files.
"""

from saliscope.runs.compare.page import compare

__all__ = ["compare"]
