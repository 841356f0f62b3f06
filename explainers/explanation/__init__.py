"""`explain` and its `Explanation`: a map with scores, statistics, findings and its file; `smooth` around any method.

The methods themselves are in `methods`, pictures of maps in `maps`.
"""
