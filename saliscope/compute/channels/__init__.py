"""Channels of a layer: maps, measures, input gradients and receptive fields."""
