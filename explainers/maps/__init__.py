"""Arithmetic on finished maps: resizing, fusing layers, boxes, and overlays with their colour maps and limits.

No network and no method is known here.
"""
