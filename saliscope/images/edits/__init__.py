"""Edits of an image: a region that is filled, and changes of the whole image."""
