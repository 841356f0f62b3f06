"""Concepts: what a unit, a direction or a class responds to, parts that a layer represents, and named concepts.

`feature_visualization` creates images, `find_concepts` decomposes the features of many images, and `tcav` tests a
concept that is given by example images.
"""
