"""Labels of the predictions, and messages about the maps of the most likely classes."""

BARS = {
    "title": "Predictions",
    "group": "Predicted classes",
    "explain": "Explain {name}",
    "more": "Show {count}",
    "less": "Show {count}",
    "true": "True class",
    "unknown": "not set",
    "clear": "Not set",
    "rank": "{name} has rank {rank} of {count}: {score}.",
    "correct": "{name} has rank 1 of {count}: {score}. The prediction is correct.",
    "show": "Explain it",
}
"""Labels used by maps/classes.js."""


def top(method: str, layer: str) -> str:
    """Return the caption of the small maps below the predictions."""
    where = f" at {layer}" if layer else ""
    return f"Small maps: {method}{where}, each with its own color range"
