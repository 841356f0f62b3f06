"""The settings after the name of a model, `NAME?size=96x64&device=cpu`; see `variants`. Imports no torch."""

from __future__ import annotations

import re

_START = re.compile(r"\?(?=(?:size|crop|mean|std|score|device)=)")


def split_name(name: str) -> tuple[str, str]:
    """Return the name of the model and the settings after it, an empty text if there are none."""
    base, *settings = _START.split(name, maxsplit=1)
    return base, settings[0] if settings else ""


def split_device(text: str) -> tuple[str, str]:
    """Return the settings of a name without its device, and the device, an empty text if it has none."""
    parts = text.split("&")
    device = next((part.removeprefix("device=") for part in parts if part.startswith("device=")), "")
    return "&".join(part for part in parts if not part.startswith("device=")), device
