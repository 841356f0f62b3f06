"""Texts about the objects of detectors and the regions of segmentation networks."""
