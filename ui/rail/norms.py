"""The norm of the explained score's gradient at every layer of the drawing: one backward pass a picture and class."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from ui.engine import engine, network_calls, scene
from ui.engine.messages import Settings, Step
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import turns
from ui.maps import kept
from ui.rail import network

if TYPE_CHECKING:
    from torch import Tensor, nn

    from explainers.targets import Target

KEPT = 64
LEAST = 1e-12
_known: OrderedDict[str, tuple[str, dict[str, float]]] = OrderedDict()
"""By key: the name of what is explained, and the norms; no network, which would never be freed."""
_lock = threading.Lock()


@dataclass(frozen=True)
class Norms:
    """Norms by layer, for the question `key`; none where the picture holds nothing to explain."""

    key: str
    settings: Settings
    name: str
    """Of the class, object or region."""
    norms: dict[str, float]


def key_of(picture: str, settings: Settings, names: dict[str, str]) -> str:
    """Equal for questions with the same score: picture, network, and class, object or region."""
    asked = [kept.content(picture), settings.bands.text if settings.bands else "", names["model"], names["target"]]
    if settings.loaded.finds:
        asked.append(str(settings.min_score))
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def measure(request: Request, run: Run) -> Iterator[Step | Norms]:
    """One forward and one backward pass, unless the last few questions had the same score.

    Errors   as `engine.explain`
    """
    settings = yield from engine.settled(request, run)
    settings, photo, images = engine.opened(settings, request)
    key = key_of(str(request.picture), settings, settings.names)
    with _lock:
        known = _known.get(key)
    if known is None:
        known = yield from _measured(settings, settings.loaded.model.crop(photo), images, run)
        with _lock:
            _known[key] = known
            while len(_known) > KEPT:
                _known.popitem(last=False)
    yield Norms(key, settings, *known)


def _measured(
    settings: Settings, seen: Image.Image, images: Tensor, run: Run
) -> Generator[Step, None, tuple[str, dict[str, float]]]:
    loaded = settings.loaded
    wanted = {name for name, *_ in network.drawing(loaded)["layers"]}
    names = [layer.name for layer in loaded.layers if layer.name in wanted]
    with turns.place(run, long=False) as turn:
        yield from engine.taken(turn)
        subject = scene.subject_of(settings, seen, images)
        if subject is None:
            return "", {}
        return subject.name, network_calls.run(loaded.name, layer_norms, images, target=subject.target, layers=names)


def layer_norms(network: nn.Module, images: Tensor, target: int | Target, layers: list[str]) -> dict[str, float]:
    """By layer: norm of the score's gradient with respect to its output; 0 where no gradient reaches it."""
    found = network_calls.at_gradients(network, images, target, layers, _norm)
    return {name: found.get(name, 0.0) for name in layers}


def _norm(gradient: Tensor) -> float:
    import torch  # torch takes seconds to start

    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float32))
    if not LEAST < norm < 1 / LEAST:  # squares that float32 cannot hold
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    return norm
