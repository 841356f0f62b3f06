"""What the rail's scripts read, beside the drawing itself."""

from __future__ import annotations

import math
from typing import Any

from ui.engine.messages import Answer
from ui.rail import network, words
from ui.rail.norms import Norms, key_of


def wanted(step: Answer, picture: str) -> dict[str, Any]:
    """After an answer: the question whose norms are wanted, and the layer that is shown."""
    settings = step.settings
    note = "" if settings.takes_layer else words.no_layer(settings.method.title)
    return {"key": key_of(picture, settings, step.names), "chosen": settings.layer, "note": note}


def norms(found: Norms) -> dict[str, Any]:
    """The norms in the drawing's order of layers; None where none was measured, or where it is NaN or infinite."""
    layers = network.drawing(found.settings.loaded)["layers"]
    values = [_rounded(found.norms.get(name)) for name, *_ in layers]
    return {"key": found.key, "model": found.settings.loaded.name, "name": found.name, "norms": values}


def _rounded(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
