"""Maps of the most likely classes."""
