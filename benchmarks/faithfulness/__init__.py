"""Faithfulness of each method: deletion, insertion and randomization over many images.

`measure` fills a cache outside the repository, image by image. `table` writes the table of docs/faithfulness.md and the
page's results from it.
"""
