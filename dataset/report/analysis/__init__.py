"""What the rows of a run say.

`summary` counts, `maps` knows where relevance lies, `clusters` and `shortcuts` find what maps of a class share.
"""
