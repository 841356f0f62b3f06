"""The gradient norm of a class score at every layer of a network, for one image."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import explainers
from saliscope.compute import engine, network_calls, scene
from saliscope.compute.answers import Settings, Step
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.request import Request
from saliscope.errors import Refused

NOTHING_TO_MEASURE = (
    "The network detects nothing in this image, so there is no score to differentiate. Choose another image."
)
VANISHED = 1e-7
"""Fraction of the largest norm below which float32 gradients are only rounding errors."""


@dataclass(frozen=True)
class Depth:
    """Norms of the gradient of the score at every layer output, in call order, and fractions of zeros."""

    settings: Settings
    name: str
    """The name of the class, object or region."""
    layers: list[explainers.Layer]
    norms: list[float]
    zeros: list[float]

    @property
    def least(self) -> float:
        """The norm below which a gradient counts as vanished."""
        return VANISHED * max((norm for norm in self.norms if math.isfinite(norm)), default=0.0)

    @property
    def vanished(self) -> list[str]:
        """The layers whose gradient is zero up to rounding, NaN or infinite."""
        return [
            layer.name
            for layer, norm in zip(self.layers, self.norms, strict=True)
            if not math.isfinite(norm) or norm <= self.least
        ]


def measure(request: Request, run: Run) -> Iterator[Step | Depth]:
    """Run one forward and one backward pass for the class, object or region, and record the gradient at every layer.

    Errors   as `engine.explain`
    """
    settings = yield from engine.resolve_settings(request, run)
    loaded, (_, image, images) = settings.loaded, engine.load_input(settings, request)
    with turns.enqueue(run, long=False) as turn:
        yield from engine.wait_turn(turn)
        subject = scene.subject_of(settings, loaded.model.crop(image), images)
        if subject is None:
            raise Refused(settings.refusal or NOTHING_TO_MEASURE)
        names = [layer.name for layer in loaded.layers]
        options = {"target": subject.target, "layers": names, "measure": network_calls.norm_and_zeros}
        measured = network_calls.run(loaded.name, network_calls.layer_gradients, images, **options)
    norms, zeros = zip(*measured.values(), strict=True) if measured else ((), ())
    yield Depth(settings, subject.name, loaded.layers, list(norms), list(zeros))
