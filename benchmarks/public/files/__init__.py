"""Hostile image files and checkpoints."""
