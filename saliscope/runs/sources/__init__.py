"""The sources of a run: folders of images, lists, tars and Hugging Face datasets, listed lazily in partitions."""

from saliscope.runs.items import Listing, Partition
from saliscope.runs.sources.listing import list_items

__all__ = ["Listing", "Partition", "list_items"]
