"""The sources of a run: folders of images, lists, tars and Hugging Face datasets, as one sorted list of items."""

from hooklens.datasets.sources.listing import Listing, list_items

__all__ = ["Listing", "list_items"]
