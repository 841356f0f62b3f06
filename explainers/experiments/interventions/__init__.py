"""Interventions: change a layer's output in a forward pass and return the scores before and after.

`changes` has what can be done to which values of a layer, and `intervene` the functions that users call.
"""
