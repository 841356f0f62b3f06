"""What a run reads: folders of pictures, lists, tars and Hugging Face data sets become one sorted list of items."""

from dataset.sources.listing import Listing, list_items

__all__ = ["Listing", "list_items"]
