"""Finished explanations of long methods, by their question: whoever asks the same again gets them at once.

A question is the network, the layer, the class, the method with all its options, and the picture's own bytes: visitors
share what is kept without seeing each other's pictures, and stochastic methods are seeded. Runs that were stopped are
not kept; Explain computes anew.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ui import limits
from ui.engine.messages import Settings
from ui.engine.request import Request

if TYPE_CHECKING:
    import explainers

BYTES = 128 * limits.MB
"""Of all tensors that are kept."""
LARGEST = 32 * limits.MB
"""Of one explanation."""

_kept: OrderedDict[tuple[str, str], explainers.Explanation] = OrderedDict()
_lock = threading.Lock()


def key(settings: Settings, request: Request) -> str:
    """Equal for questions with the same answer; the plane that is shown comes after a stroke. Empty without a picture.

    Nothing of a visitor's can be read from it: it is sent to the browser, which keeps its maps by it.
    """
    if request.picture is None or not Path(request.picture).is_file():
        return ""
    options = {name: option.default for name, option in settings.method.options.items()} | settings.options
    names = settings.names if settings.takes_layer or settings.loaded.finds else {**settings.names, "layer": ""}
    bands = settings.bands.text if settings.bands else request.bands
    text = json.dumps([content(request.picture), names, options, bands], sort_keys=True, default=repr)
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    return digest if request.plane is None else f"{digest}/{request.plane}"


def subject(settings: Settings, request: Request) -> str:
    """Equal for questions about the same thing in the same picture, at whichever layer and by whichever method."""
    if request.picture is None or not Path(request.picture).is_file():
        return ""
    names = {name: settings.names[name] for name in ("model", "target")}
    bands = settings.bands.text if settings.bands else request.bands
    least = settings.min_score if settings.loaded.finds else 0.0
    text = json.dumps([content(request.picture), names, least, bands], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def content(picture: str) -> str:
    """A hash of the file's content: Gradio gives one file several paths."""
    status = Path(picture).stat()
    return _digest(picture, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _digest(path: str, changed: int, size: int) -> str:
    """A file's content, as long as its time and its size stay."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(settings: Settings) -> explainers.Explanation | None:
    """The finished explanation of just this question at this layer, or None."""
    with _lock:
        found = _kept.get(_place(settings))
        if found is not None:
            _kept.move_to_end(_place(settings))
        return found


def put(settings: Settings, explanation: explainers.Explanation) -> None:
    """Keep a finished explanation; those that were not asked for the longest time go."""
    if not settings.key or _bytes(explanation) > LARGEST:
        return
    with _lock:
        _kept[_place(settings)] = explanation
        _kept.move_to_end(_place(settings))
        while sum(map(_bytes, _kept.values())) > BYTES:
            _kept.popitem(last=False)


def _place(settings: Settings) -> tuple[str, str]:
    """The question, whichever plane is shown; a detection may be explained at another layer than was asked for."""
    return settings.key.partition("/")[0], settings.layer if settings.takes_layer else ""


def _bytes(explanation: explainers.Explanation) -> int:
    tensors = (explanation.map, explanation.raw, explanation.scores)
    return sum(each.numel() * each.element_size() for each in tensors if each is not None)
