"""The sentences of the API: its page, and what a program's arguments cannot be."""

from __future__ import annotations

from typing import Any

from ui.words import short

API_TEXT = (
    "The page's answers for programs: `explain`, `feature_maps`, `list_models`, `list_layers` and `list_methods`. "
    "Empty arguments mean the default; a class is a name or an index."
)
PYTHON = "Python", "With gradio_client; map and overlay are paths of downloaded files."
LIBRARY = "Library", "Without a server: explainers needs torch alone."
SHELL = "Shell", "Upload, call, answer: the second request returns the id of an event, GET on it the answer."
NO_OBJECT = 'options must be a JSON object of option names and values, for example {"samples": 25}.'


def no_text(argument: str, value: Any, longest: int) -> str:
    """When a program's argument is no name."""
    kind = f"one of {len(value)} characters" if isinstance(value, str) else short(type(value).__name__)
    return f"{argument} must be a string of at most {longest} characters, not {kind}."


def no_sort(value: Any, sorts: tuple[str, ...]) -> str:
    """When a program asks for an unknown order."""
    return f"sort cannot be “{short(str(value))}”. Choose one of {', '.join(sorts)}."


def no_channels(layer: str, count: int) -> str:
    """When a program asks for channels that do not exist."""
    return f"channels must be a list of integers from 0 to {count - 1}: layer {layer} has {count} channels."
