"""The report of a run: a self-contained HTML page with metrics, mistakes, and clusters of maps.

`analysis` computes what is shown, `images` creates thumbnails, `headlines` and `text` contain the texts, `links` the
links to the app; `content` combines everything, and `page` writes the file.
"""

from saliscope.datasets.report.page import write

__all__ = ["write"]
