"""Comparison of two models on the same images: predictions, maps and layers."""
