"""The report of a run: a self-contained HTML page with metrics, mistakes, and clusters of maps.

`analysis` computes the results, which `context` collects; `answers` says what is wrong. `images` creates thumbnails,
`links` the links to the app; `content` combines everything and writes the file. The texts are in the templates in
`static`, which share `base.html`, `macros.html`, their scripts and `page`, which renders them, with the comparison;
`saliscope.runs.formats` has the numbers and names in them.
"""

from saliscope.runs.report.content import write
from saliscope.runs.report.context import Report

__all__ = ["Report", "write"]
