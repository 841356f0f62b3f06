"""Statistics of the rows of a run.

`summary` computes counts and rates, `maps` the position of the relevance, `clusters` and `shortcuts` what the maps of a
class have in common.
"""
