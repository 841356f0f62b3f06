"""The wire format of the arithmetic of one value for page/arithmetic/."""

from __future__ import annotations

from typing import Any

import torch

from saliscope.compute.arithmetic import messages
from saliscope.compute.arithmetic.answers import ValueOf
from saliscope.page.wire import base64_text


def value(step: ValueOf) -> dict[str, Any]:
    """Pack the operations, the largest products, the patch with its kernel, and the strongest path."""
    found = step.arithmetic
    table = [messages.product(each, step) for each in found.largest]
    packed: dict[str, Any] = {
        "title": messages.title(step),
        "rows": messages.rows(step),
        "check": messages.check(step),
        "products": [*table, *([rest] if (rest := messages.others(step)) else [])],
        "path": [messages.path(part) for part in found.path],
    }
    if found.inputs is not None and found.weights is not None and found.inside is not None:
        strongest = found.largest[0].channel if found.largest else found.first_channel
        packed["patch"] = {
            "shape": list(found.inputs.shape),
            "first": found.first_channel,
            "strongest": strongest,
            "inputs": _floats(found.inputs),
            "weights": _floats(found.weights),
            "inside": _floats(found.inside.float()),
        }
    if found.kernels is not None:
        packed["kernels"] = {
            "shape": list(found.kernels.shape),
            "chosen": found.kernel,
            "values": _floats(found.kernels),
        }
    return packed


def _floats(values: torch.Tensor) -> dict[str, str]:
    data = values.detach().float().cpu().contiguous().numpy().tobytes()
    return {"b64": base64_text(data), "dtype": "float32"}
