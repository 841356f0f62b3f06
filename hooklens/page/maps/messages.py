"""Labels of the predictions, and messages about the maps of the most likely classes."""

BARS = {"title": "Predictions", "group": "Predicted classes", "explain": "Explain {name}"}
"""Labels used by static/maps/classes.js."""


def top(method: str, layer: str) -> str:
    """Return the caption of the small maps below the predictions."""
    where = f" at {layer}" if layer else ""
    return f"Small maps: {method}{where}, each with its own color range"
