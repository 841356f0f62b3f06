"""Compare two runs: changed predictions, accuracies, and agreement of maps.

`comparing` finds the images that both runs have and compares their rows in batches, `statistics` has the tests and
intervals, and the agreement of maps; `page` writes both files.
"""

from saliscope.runs.compare.page import compare

__all__ = ["compare"]
