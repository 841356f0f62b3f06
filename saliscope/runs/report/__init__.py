"""The report of a run: a self-contained HTML page with metrics, mistakes, and clusters of maps.

`analysis` computes what is shown, `images` creates thumbnails, `links` the links to the app; `content` combines
everything, and `page` writes the file. The texts are in the templates in `static`, which share `base.html`,
`macros.html` and their scripts with the comparison; `saliscope.runs.formats` has the numbers and names in them.
"""

from saliscope.runs.report.context import Report
from saliscope.runs.report.page import write

__all__ = ["Report", "write"]
