"""Maps of the most likely classes, computed one at a time after the main map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

import explainers
from saliscope.compute import engine, model_cache, network_calls, results_cache, scene
from saliscope.compute.answers import Settings, Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.request import Request

COUNT = 3
"""Number of classes with a small map."""
QUICK = 1.0
"""Maximum seconds of a method that is also used for the maps of other classes."""
OTHER = "grad_cam"
"""The method used instead of a slow or class-agnostic method."""


@dataclass(frozen=True)
class TopMaps:
    """Maps [h, w] of classes by their index."""

    settings: Settings
    crop: Image.Image
    method: explainers.Method
    maps: dict[int, torch.Tensor]


def method_of(settings: Settings, seconds: float = 0.0) -> explainers.Method | None:
    """Return the method of the small maps: the current method if it is class-specific and took less than `QUICK`.

    Returns None for a detector or a segmentation network, which lists objects instead of classes.
    """
    method = settings.method
    if settings.loaded.detects_objects:
        return None
    if method.reads_class and not method.long and not method.planes and seconds < QUICK:
        return method
    other = explainers.METHODS[OTHER]
    return other if model_cache.why_not(other, settings.loaded) is None else None


def explain(request: Request, run: Run, key: str, name: str, classes: list[int]) -> Iterator[Waiting | TopMaps]:
    """Yield the maps of the classes, one more at each step; yield nothing if the page has changed.

    `key` is the key of the shown answer, `name` the method that was chosen for these maps.
    """
    settings = yield from engine.resolve_settings(request, run)
    if not key or results_cache.key(settings, request) != key:
        return
    candidates = filter(None, (method_of(settings), method_of(settings, QUICK)))
    method = next((candidate for candidate in candidates if candidate.name == name), None)
    if method is None:
        return
    settings, image, images = engine.load_input(settings, request)
    options: dict[str, Any] = dict(settings.method_options) if method.name == settings.method.name else {}
    if method.takes_layer:
        options["layer"] = settings.layer
    crop, maps = settings.loaded.model.crop(image), {}
    for index in [index for index in classes if 0 <= index < len(settings.class_names)][:COUNT]:
        with turns.enqueue(run, long=False) as turn:
            yield from engine.wait_turn(turn)
            if run.stopped():
                return
            target = scene.target_of_label(settings, index)
            explanation = network_calls.explain(settings.loaded.name, method.name, images, target=target, **options)
        maps[index] = explanation.placed[0].float()
        yield TopMaps(settings, crop, method, dict(maps))
