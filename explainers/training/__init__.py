"""Gradients while a network trains: clip, scale, freeze, replace, record, and what a log says is wrong.

The hooks under it are in `hooks`; explaining a trained network needs none of this.
"""
