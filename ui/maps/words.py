"""What is said about the maps of the most likely classes."""


def top(method: str, layer: str) -> str:
    """Below the predictions: what the small maps are."""
    place = f" at {layer}" if layer else ""
    return f"Small maps: {method}{place}, each in its own colour range"
