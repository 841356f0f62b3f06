"""How large the gradient of a class is at every layer of a network, for one picture. Importable without gradio."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ui.engine import engine, network_calls
from ui.engine.messages import Settings, Step
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.lab import engine as lab_engine

if TYPE_CHECKING:
    import explainers

VANISHED = 1e-7
"""Share of the largest norm below which float32 leaves nothing but rounding."""


@dataclass(frozen=True)
class Depth:
    """Norm of the class score's gradient at every layer's output, in call order, and its share of exact zeros."""

    settings: Settings
    target: int
    layers: list[explainers.Layer]
    norms: list[float]
    zeros: list[float]

    @property
    def least(self) -> float:
        """A norm below this counts as vanished."""
        return VANISHED * max((norm for norm in self.norms if math.isfinite(norm)), default=0.0)

    @property
    def vanished(self) -> list[str]:
        """The layers at which no gradient is left, or none that is a number."""
        return [
            layer.name
            for layer, norm in zip(self.layers, self.norms, strict=True)
            if not math.isfinite(norm) or norm <= self.least
        ]


def measure(request: Request, run: Run) -> Iterator[Step | Depth]:
    """One forward and one backward pass of the chosen class, looked at on its whole way.

    Errors   as `engine.explain`
    """
    settings = yield from engine.settled(request, run)
    loaded, (_, images) = settings.loaded, engine.prepared(settings, request)
    with engine.turn:
        target = engine.class_of(settings, images)
        names = [layer.name for layer in loaded.layers]
        found = network_calls.run(loaded.name, lab_engine.layer_norms, images, target=target, layers=names)
    pairs = [found[layer.name].tolist() for layer in loaded.layers]
    yield Depth(settings, target, loaded.layers, [norm for norm, _ in pairs], [zero for _, zero in pairs])
