"""Every sentence of the network rail."""

from __future__ import annotations

from typing import Any

TITLE = "Network, input to output"
GROUP = "Layer: blocks of the network, input to output"
LEGEND = "Bars: gradient norm, logarithmic. Arcs: skip connections. Hollow: no meaningful map. Dashed: bypassed."
LOADING = "The network is drawn once it is loaded."
INSIDE = "Layers inside {name} ({count})"
INSIDE_GROUP = "Layer: inside {name}"
NORM = "gradient norm {norm} for {name}"
NO_GRADIENT = "no gradient of {name} reaches it"
MEASURING = "gradient norm …"
IN_BLOCK = "in block {name}"
CHANNELS = "{count} channels"

WHY = {
    "no grid": "No map: its output {shape} has no height and width.",
    "one cell": "No map: a single cell, 1 × 1, shows no place.",
    "coarse": "A map means little: {grid} cells are too few to show a place.",
    "unused": "A map means nothing: the scores do not depend on it.",
    "class token": "A map means nothing: of its output only the class token is read; no gradient reaches the patches.",
    "attention": "A map means little inside an attention: it mixes places, and its output is a part of a sum.",
    "bypassed": "Not on every path: other paths go around it, so a map shows only its part of the score.",
}
"""Why a map means little at a layer, by `explainers.layers.blocks.partition.Why`."""
NOT_LISTED = frozenset({"no grid", "one cell"})
"""Where no method draws a map, so that the layer cannot be chosen."""


def why(reason: str, layer: Any) -> str:
    """The sentence for a layer; empty where a map means what it should."""
    if not reason:
        return ""
    grid = " × ".join(map(str, layer.grid or ()))
    shape = " × ".join(map(str, layer.shape[1:] or layer.shape))
    return WHY[reason].format(grid=grid, shape=shape)


def no_layer(title: str) -> str:
    """The note on a method that has no layer."""
    return f"{title} explains the whole network; the layer chosen here is that of Feature maps."


def terms() -> dict[str, str]:
    """What rail.js says."""
    names = ("group", "legend", "loading", "inside", "inside_group", "norm", "no_gradient", "measuring", "in_block")
    return {"title": TITLE, **{name: globals()[name.upper()] for name in names}, "channels": CHANNELS}
