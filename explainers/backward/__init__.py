"""Backward passes with rules of their own: rectified gradients, LRP, DeepLIFT, for one call in the calling thread.

`operations` sees every torch operation; each method has one file of rules and one that applies them.
Plain gradients: `passes`.
"""
