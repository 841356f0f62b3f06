"""The wire format of the network diagram, except for the drawing."""

from __future__ import annotations

import math
from typing import Any

from saliscope.compute.answers import Answer
from saliscope.compute.rail import messages, network
from saliscope.compute.rail.description import Described
from saliscope.compute.rail.norms import Norms, key_of


def identify(step: Answer, image: str) -> dict[str, Any]:
    """Pack the key of the requested norms, and the current layer."""
    settings = step.settings
    note = "" if settings.takes_layer else messages.no_layer(settings.method.title, settings.method.family == "control")
    return {"key": key_of(image, settings, step.names), "chosen": settings.layer, "note": note}


def norms(step: Norms) -> dict[str, Any]:
    """Pack the norms in the layer order of the drawing; None for layers without a finite norm."""
    layers = network.drawing(step.settings.loaded)["layers"]
    values = [_rounded(step.norms.get(name)) for name, *_ in layers]
    return {"key": step.key, "model": step.settings.loaded.name, "name": step.name, "norms": values}


def _rounded(value: float | None) -> float | None:
    """Round to four significant digits."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def description(step: Described) -> dict[str, Any]:
    """Pack the table of the layers, its totals in words, and the same as CSV."""
    found = step.description
    rows = [
        [
            layer.name,
            layer.kind,
            " × ".join(map(str, layer.shape[1:] or layer.shape)),
            f"{layer.parameters:,}",
            f"{layer.multiply_adds:,}",
            f"{layer.output_bytes / 1e6:,.3f}",
            f"{layer.seconds * 1e3:.2f}",
            "" if layer.receptive_field is None else " × ".join(map(str, layer.receptive_field)),
            layer.is_leaf,
        ]
        for layer in found.layers
    ]
    return {"model": step.loaded.name, "rows": rows, "totals": messages.totals(found), "csv": found.to_csv()}
