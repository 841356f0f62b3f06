"""An index of the units of a network over the images of a source, as a folder.

    settings.json     the format and the settings that the index depends on, written first; `names_by` is set for names
                      that an encoder chose
    work/index.pt     the index so far, of an unfinished index
    units.parquet     one row per channel: mean, sparsity, whether it is dead, its name and the test of the name
    top.parquet       one row per channel and strongest image: path, value, cell, box, and a small JPEG of the box
    photos.parquet    one row per photo of top.parquet: its path, and a small JPEG of what the network receives
    manifest.json     counts, versions and the first errors, written last

`indexing` writes an index, `tables` has its tables and opens a finished one, `labeling` has the words of images.
"""

from saliscope.runs.units.indexing import IndexJob, IndexSettings, prepare, write_index
from saliscope.runs.units.labeling import Labeler, open_labeler
from saliscope.runs.units.tables import StoredIndex, open_index

__all__ = [
    "IndexJob", "IndexSettings", "Labeler", "StoredIndex", "open_index", "open_labeler", "prepare", "write_index",
]  # fmt: skip
