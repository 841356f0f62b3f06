"""Maps beside the one that was asked for: finished ones that are kept, and those of the most likely classes."""
