"""The trainings that the lab offers, and how the form of one is read. Nothing here needs torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from saliscope import limits
from saliscope.compute.lab import messages
from saliscope.errors import Refused

CONV = ("conv1", "conv2", "conv3", "output")
RANGES: dict[str, tuple[float, float]] = {
    "rate": (1e-6, 100.0),
    "steps": (1, limits.TRAINING_STEPS),
    "depth": (1, limits.TRAINING_LAYERS),
    "clip_norm": (1e-9, 1e9),
    "clip_value": (1e-9, 1e9),
    "noise": (0.0, 1e3),
    "factor": (-1e3, 1e3),
}
"""The range of every number of the form."""
WHOLE = ("steps", "depth")


@dataclass(frozen=True)
class Training:
    """The task, the optimizer, and the gradient hooks in order; None and "" disable a hook."""

    task: str = "mlp"
    rate: float = 0.3
    steps: int = 240
    optimizer: str = "sgd"
    activation: str = "relu"
    depth: int = 3
    clip_value: float | None = None
    clip_norm: float | None = None
    noise: float | None = None
    scale: str = ""
    factor: float = 0.1
    freeze: str = ""

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers with weights, from first to last."""
        if self.task == "mlp":
            return (*(f"hidden{k + 1}" for k in range(self.depth)), "output")
        return CONV if self.task == "cnn" else ("line",)

    @property
    def every(self) -> int:
        """The interval of recorded steps, chosen to limit the points of a curve."""
        return math.ceil(self.steps / limits.TRAINING_POINTS)


PRESETS = {
    "mlp": Training(),
    "line": Training("line", 0.01, 100),
    "cnn": Training("cnn", 0.1, 160),
    "vanishing": Training("mlp", 0.01, 150, activation="sigmoid", depth=8),
    "exploding": Training("line", 0.25, 100),
    "clipped": Training("line", 0.25, 100, clip_norm=1.0),
    "frozen": Training("mlp", 0.3, 240, freeze="hidden1", noise=0.01),
}


def parse_form(data: Any) -> Training:
    """Parse a form as sent by the browser.

    Errors   Refused for values that the form does not allow
    """
    data = data if isinstance(data, Mapping) else {}
    values: dict[str, Any] = {}
    for field in fields(Training):
        value = data.get(field.name, field.default)
        if field.name in RANGES:
            value = _number(field.name, value, optional=field.default is None)
        elif not isinstance(value, str):
            raise Refused(messages.BAD_FORM)
        values[field.name] = value
    training = Training(**values)
    listed = {"task": messages.TASKS, "activation": messages.ACTIVATIONS, "optimizer": messages.OPTIMIZERS}
    if any(values[name] not in dict(choices) for name, choices in listed.items()):
        raise Refused(messages.BAD_FORM)
    for layer in (training.scale, training.freeze):
        if layer and layer not in training.layers:
            raise Refused(messages.no_layer(layer, training.layers))
    return training


def _number(name: str, value: Any, *, optional: bool) -> Any:
    low, high = RANGES[name]
    if value is None and optional:
        return None
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not known or (name in WHOLE and value != int(value)):
        raise Refused(range_messages()[name])
    return int(value) if name in WHOLE else float(value)


def range_messages() -> dict[str, str]:
    """Return the message for an invalid value of each number in the form."""
    optional = {field.name for field in fields(Training) if field.default is None}
    return {
        name: messages.out_of_range(name, *ends, whole=name in WHOLE, optional=name in optional)
        for name, ends in RANGES.items()
    }
