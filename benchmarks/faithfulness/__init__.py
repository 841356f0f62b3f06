"""How far each method can be believed: deletion, insertion and randomisation over many photographs.

`measure` fills a cache outside the repository, photograph by photograph; `table` makes docs/methods.md and the page's
verdicts of it.
"""
