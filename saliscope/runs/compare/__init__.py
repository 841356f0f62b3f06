"""Compare two runs: changed predictions, accuracies, and agreement of maps.

`comparing` finds the images that both runs have and compares their rows in batches, `agreement` compares the part of
the maps that both networks received, `statistics` has the tests and intervals, and `page` writes both files.
"""

from saliscope.runs.compare.page import compare

__all__ = ["compare"]
