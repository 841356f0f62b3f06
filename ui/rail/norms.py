"""The norm of the explained score's gradient at every layer of the drawing: one backward pass a picture and class."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from ui.engine import engine, network_calls
from ui.engine.messages import Settings, Step
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import turns
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
    """Equal for questions with the same score: picture, network, and class, object or region.

    By the picture's content: Gradio gives one file several paths.
    """
    with open(picture, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    asked = [content, settings.bands.text if settings.bands else "", names["model"], names["target"]]
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
        subject = engine.subject_of(settings, seen, images)
        if subject is None:
            return "", {}
        return subject.name, network_calls.run(loaded.name, layer_norms, images, target=subject.target, layers=names)


def layer_norms(network: nn.Module, images: Tensor, target: int | Target, layers: list[str]) -> dict[str, float]:
    """By layer: norm of the score's gradient with respect to its output; 0 where no gradient reaches it."""
    import torch  # torch takes seconds to start

    import explainers  # torch takes seconds to start
    from explainers.targets import scores_of  # torch takes seconds to start

    norms = dict.fromkeys(layers, 0.0)

    def record(name: str) -> Callable[[Tensor], None]:
        def see(gradient: Tensor) -> None:
            norm = float(torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32))
            if not LEAST < norm < 1 / LEAST:  # squares that float32 cannot hold
                norm = float(torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64))
            norms[name] = norm

        return see

    with torch.enable_grad(), explainers.edit_gradients({(network, name): record(name) for name in layers}):
        inputs = images.detach().clone().requires_grad_()
        output = network(inputs)
        score = scores_of(output)[:, target] if isinstance(target, int) else target(output)
        torch.autograd.grad(score.sum(), inputs)  # leaves the parameters' `.grad` alone
    return norms
