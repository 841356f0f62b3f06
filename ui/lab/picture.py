"""The gradient norm of a class score at every layer of a network, for one picture. Importable without gradio."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ui.engine import engine, network_calls, scene
from ui.engine.messages import Refused, Settings, Step
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import turns
from ui.lab import engine as lab_engine
from ui.lab import words

if TYPE_CHECKING:
    import explainers

VANISHED = 1e-7
"""Fraction of the largest norm below which float32 leaves rounding errors alone."""


@dataclass(frozen=True)
class Depth:
    """Norm of the class score's gradient with respect to every layer's output, in call order; its fraction of zeros."""

    settings: Settings
    name: str
    """Of the class, object or region."""
    layers: list[explainers.Layer]
    norms: list[float]
    zeros: list[float]

    @property
    def least(self) -> float:
        """A norm below this counts as vanished."""
        return VANISHED * max((norm for norm in self.norms if math.isfinite(norm)), default=0.0)

    @property
    def vanished(self) -> list[str]:
        """The layers where the gradient is zero up to rounding, NaN or infinite."""
        return [
            layer.name
            for layer, norm in zip(self.layers, self.norms, strict=True)
            if not math.isfinite(norm) or norm <= self.least
        ]


def measure(request: Request, run: Run) -> Iterator[Step | Depth]:
    """One forward and one backward pass of the class, object or region, recorded at every layer.

    Errors   as `engine.explain`
    """
    settings = yield from engine.settled(request, run)
    loaded, (photo, images) = settings.loaded, engine.prepared(settings, request)
    with turns.place(run, long=False) as turn:
        yield from engine.taken(turn)
        subject = scene.subject_of(settings, loaded.model.crop(photo), images)
        if subject is None:
            raise Refused(words.NOTHING_TO_MEASURE)
        names = [layer.name for layer in loaded.layers]
        measured = network_calls.run(loaded.name, lab_engine.layer_norms, images, target=subject.target, layers=names)
    pairs = [measured[layer.name].tolist() for layer in loaded.layers]
    yield Depth(settings, subject.name, loaded.layers, [norm for norm, _ in pairs], [zero for _, zero in pairs])
