"""The comparison of two models, the second part of the Compare view."""
