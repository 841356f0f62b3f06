"""The maps of the most likely classes, computed one at a time after the map that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui.engine import engine, model_cache, network_calls
from ui.engine.messages import Settings, Waiting
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import turns
from ui.maps import kept

if TYPE_CHECKING:
    import torch

    import explainers

COUNT = 3
"""Classes with a map beside their bar."""
QUICK = 1.0
"""Seconds that a map may take for those of other classes to be computed too."""
OTHER = "grad_cam"
"""The method where the one that is shown is slow, or asks for no class."""


@dataclass(frozen=True)
class TopMaps:
    """Maps [h, w] of classes by their index."""

    settings: Settings
    seen: Image.Image
    method: explainers.Method
    maps: dict[int, torch.Tensor]


def method_of(settings: Settings, seconds: float = 0.0) -> explainers.Method | None:
    """The method of the small maps: the one that is shown if it took less than `QUICK` and explains a class.

    None where there are none: a network that finds things shows those.
    """
    import explainers  # torch takes seconds to start

    method = settings.method
    if settings.loaded.finds:
        return None
    if method.reads_class and not method.long and not method.planes and seconds < QUICK:
        return method
    other = explainers.METHODS[OTHER]
    return other if model_cache.why_not(other, settings.loaded, settings.layer) is None else None


def explain(request: Request, run: Run, key: str, name: str, classes: list[int]) -> Iterator[Waiting | TopMaps]:
    """The classes' maps, one more at each step; nothing where the page shows another question by now.

    `key` is that of the question whose answer is shown, `name` the method that it chose for these maps.
    """
    settings = yield from engine.settled(request, run)
    if not key or kept.key(settings, request) != key:
        return
    method = next(
        (each for each in (method_of(settings), method_of(settings, QUICK)) if each and each.name == name), None
    )
    if method is None:
        return
    settings, photo, images = engine.opened(settings, request)
    options: dict[str, Any] = dict(settings.method_options) if method.name == settings.method.name else {}
    if method.takes_layer:
        options["layer"] = settings.layer
    seen, maps = settings.loaded.model.crop(photo), {}
    for index in [index for index in classes if 0 <= index < len(settings.loaded.names)][:COUNT]:
        with turns.place(run, long=False) as turn:
            yield from engine.taken(turn)
            if run.stopped():
                return
            explanation = network_calls.explain(settings.loaded.name, method.name, images, target=index, **options)
        maps[index] = explanation.map[0].float()
        yield TopMaps(settings, seen, method, dict(maps))
