"""Saving: figures, bundles, and their file formats."""
