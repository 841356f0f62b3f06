"""Gradients during training: clip, scale, freeze, replace, add noise, record, diagnose.

Tensor hooks are registered in `hooks`. This package is not needed to explain a trained network.
"""
