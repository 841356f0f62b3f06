"""Gradients during training: clip, scale, freeze, replace, add noise, record, diagnose.

Tensor hooks are registered in `hooks`. Explaining a trained network needs none of this.
"""
