"""The channels of a layer: all of them as tiles, one of them large, and why it fired."""
