"""Texts of the API view, and error messages for invalid API arguments."""

from __future__ import annotations

from typing import Any

from saliscope import install
from saliscope.compute.messages import short

API_TEXT = (
    "API endpoints: `explain`, `feature_maps`, `list_models`, `list_layers` and `list_methods`. "
    "Empty arguments use the default. A class can be given by name or by index."
)
PYTHON = "Python", "Uses gradio_client. The map and the overlay are paths of downloaded files."
LIBRARY = "Library", "Runs without a server. The package explainers only needs torch."
SHELL = "Shell", "Upload the file, call the endpoint, and fetch the result of the returned event id with GET."
INVALID_OPTIONS = 'options must be a JSON object of option names and values, for example {"samples": 25}.'

NO_MCP = f"--mcp needs the package mcp, which is not installed. {install.hint('mcp')}."


def invalid_text(argument: str, value: Any, longest: int) -> str:
    """Return the message for an argument that is not a string or is too long."""
    kind = f"{len(value)} characters" if isinstance(value, str) else short(type(value).__name__)
    return f"{argument} must be a string of at most {longest} characters, got {kind}."


def invalid_sort(value: Any, sorts: tuple[str, ...]) -> str:
    """Return the message for an unknown sort order."""
    return f"Unknown sort “{short(str(value))}”. Choose one of {', '.join(sorts)}."


def invalid_channels(layer: str, count: int) -> str:
    """Return the message for channels that the layer does not have."""
    return f"channels must be a list of integers from 0 to {count - 1}: layer {layer} has {count} channels."
