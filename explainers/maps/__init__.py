"""Operations on finished maps: resizing, fusion of layers, boxes, and overlays with their color maps and limits.

None of these functions runs a network.
"""
