"""The sources of a run: folders of images, lists, tars and Hugging Face datasets, listed lazily in partitions."""

from saliscope.datasets.sources.listing import list_items
from saliscope.datasets.sources.partitions import Listing, Partition

__all__ = ["Listing", "Partition", "list_items"]
