"""Operations on finished maps: resizing, fusion of layers, boxes, and overlays with their colour maps and limits.

Nothing here runs a network.
"""
