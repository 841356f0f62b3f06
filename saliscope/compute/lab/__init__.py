"""Gradient lab: hooks on expressions and on a training run, and gradient norms of a network."""
