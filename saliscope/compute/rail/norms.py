"""The norm of the gradient of the explained score at every layer of the drawing, from one backward pass."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from saliscope.compute import engine, network_calls, results_cache, scene
from saliscope.compute.answers import Settings, Step
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.rail import network
from saliscope.compute.request import Request
from saliscope.compute.results_cache import Recent

_known = Recent[tuple[str, dict[str, float]]]()
"""By subject: the name of the target, and the norms. Networks are not stored, so that they can be freed."""


@dataclass(frozen=True)
class Norms:
    """Norms by layer for a subject, see `results_cache.subject`; empty if nothing was detected in the image."""

    key: str
    settings: Settings
    name: str
    """The name of the class, object or region."""
    norms: dict[str, float]


def measure(request: Request, run: Run) -> Iterator[Step | Norms]:
    """Yield the norms, from the cache or from one forward and one backward pass.

    Errors   as `engine.explain`
    """
    settings = yield from engine.resolve_settings(request, run)
    settings, image, images = engine.load_input(settings, request)
    key = results_cache.subject(settings, request)
    known = _known.get(key)
    if known is None:
        known = yield from _measure(settings, settings.loaded.model.crop(image), images, run)
        _known.put(key, known)
    yield Norms(key, settings, *known)


def _measure(
    settings: Settings, crop: Image.Image, images: Tensor, run: Run
) -> Generator[Step, None, tuple[str, dict[str, float]]]:
    loaded = settings.loaded
    drawn = {name for name, *_ in network.drawing(loaded)["layers"]}
    names = [layer.name for layer in loaded.layers if layer.name in drawn]
    with turns.enqueue(run, long=False) as turn:
        yield from engine.wait_turn(turn)
        subject = scene.subject_of(settings, crop, images)
        if subject is None:
            return "", {}
        options = {"target": subject.target, "layers": names, "measure": network_calls.gradient_norm}
        return subject.name, network_calls.run(loaded.name, network_calls.layer_gradients, images, **options)
