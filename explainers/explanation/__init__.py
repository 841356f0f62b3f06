"""`explain` and its result `Explanation`: a map with scores, statistics and findings; `smooth`, which averages maps.

The methods are in `methods`, the drawing of maps is in `maps`.
"""
