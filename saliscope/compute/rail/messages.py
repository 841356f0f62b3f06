"""Labels and messages of the network diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explainers import Description, Method

TERMS = {
    "title": "Network diagram",
    "group": (
        "Layers of the network, input to output. Arrow keys preview a layer, Enter selects it, Space plays all maps, "
        "arrow down shows folded layers, arrow up folds them"
    ),
    "legend": (
        "Width: channels. Height: resolution. Bar below a map: gradient norm (log scale). Arcs: skip connections, "
        "dashed if they have weights. Dashed box: a map is not meaningful or incomplete."
    ),
    "view": "View",
    "diagram": "Diagram",
    "table": "Table",
    "save_svg": "Save SVG",
    "save_csv": "Save CSV",
    "describing": "Measuring all layers …",
    "columns": [
        ["Layer", ""],
        ["Kind", ""],
        ["Output", "Shape of the output for one image"],
        ["Parameters", ""],
        ["Multiply-adds", "Of convolutions, matrix products and attention, for one image"],
        ["Memory, MB", "Size of the output for one image"],
        ["Time, ms", "In one forward pass of one image on this server"],
        ["Receptive field", "Of the central cell, in pixels"],
    ],
    "container": "Includes the layers inside it",
    "maps": "Grad-CAM for {name} at each block. Hover to preview, click to select.",
    "preview": "Preview: Grad-CAM for {name} at {layer}",
    "averaged": "averaged to {h} × {w}",
    "zero": "zero everywhere",
    "play": "Play",
    "stop": "Stop",
    "image": "image",
    "score": "score",
    "count": "×{count}",
    "close": "fold",
    "open_label": "×{count}: show each block from {first} to {last}",
    "close_label": "fold the {count} blocks from {first} to {last}",
    "folded": "The last of {count} equal blocks.",
    "loading": "The network appears here after it is loaded.",
    "inside": "Layers inside {name} ({count})",
    "inside_group": "Layer: inside {name}",
    "norm": "gradient norm {norm} for {name}",
    "no_gradient": "no gradient of {name} reaches it",
    "measuring": "gradient norm …",
    "in_block": "in block {name}",
    "channels": "{count} channels",
    "channel": "1 channel",
    "channels_short": "{count} ch.",
}
"""Labels used by rail/rail.js."""

WHY = {
    "no grid": "No map: the output {shape} has no spatial dimensions.",
    "one cell": "No map: the output is a single cell (1 × 1) without spatial information.",
    "coarse": "Of little use: {grid} cells are too few to localize anything.",
    "unused": "Not meaningful: the scores do not depend on this layer.",
    "class token": "Not meaningful: only the class token of its output is used, and no gradient reaches the patches.",
    "attention": "Of little use: attention mixes positions, and the output of this layer is added to a residual.",
    "bypassed": "Incomplete: other paths bypass this layer, so a map shows only its part of the score.",
}
"""Why a map is not meaningful at a layer, by the `why` of its `BlockStep`."""
NOT_LISTED = frozenset({"no grid", "one cell"})
"""Reasons for which no method returns a map, so that the layer cannot be selected."""


def why(reason: str, layer: Any) -> str:
    """Return why a map of the layer is not meaningful, or an empty string."""
    if not reason:
        return ""
    grid = " × ".join(map(str, layer.grid or ()))
    shape = " × ".join(map(str, layer.shape[1:] or layer.shape))
    return WHY[reason].format(grid=grid, shape=shape)


def no_layer(method: Method) -> str:
    """Return the note for a method that does not take a layer."""
    what = "does not use the network" if method.family == "control" else "explains the whole network"
    return f"{method.title} {what}. The layer selected here only applies to Channels."


def totals(found: Description) -> str:
    """Return the totals of a network in words."""
    return (
        f"{found.parameters:,} parameters · {found.multiply_adds:,} multiply-adds · "
        f"{found.output_bytes / 1e6:,.1f} MB of outputs · {found.seconds * 1e3:.1f} ms for one image"
    )
