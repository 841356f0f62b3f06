"""The report of a run: a self-contained HTML page with metrics, mistakes, and clusters of maps.

`analysis` computes the results, which `context` collects; `answers` says what is wrong. `images` has thumbnails and
links to the app; `content` combines everything and writes the file. The texts are in the templates in `static`, which
`saliscope.runs.pages` renders; the comparison shares `base.html`, `macros.html` and the scripts.
"""

from saliscope.runs.report.content import write
from saliscope.runs.report.context import Report

__all__ = ["Report", "write"]
