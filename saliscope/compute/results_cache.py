"""A cache of finished explanations of long methods, shared by all users.

The key consists of the network, the layer, the class, the method with all options, and the bytes of the image, so users
share results without access to each other's images. Stochastic methods are seeded. Stopped runs are not cached, and the
Explain button bypasses the cache.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path

import explainers
from saliscope import hashes, limits
from saliscope.compute.answers import Settings
from saliscope.compute.request import Request

BYTES = 128 * limits.MB
"""Size limit of all cached tensors."""
LARGEST = 32 * limits.MB
"""Size limit of one explanation."""

_cache: OrderedDict[tuple[str, str], explainers.Explanation] = OrderedDict()
_lock = threading.Lock()


def key(settings: Settings, request: Request) -> str:
    """Return a key that is equal for requests with the same result, or an empty string without an image.

    The selected plane follows after a slash. The key is a hash, so it can be sent to the browser, which uses it for its
    own cache.
    """
    if request.image is None or not Path(request.image).is_file():
        return ""
    options = {name: option.default for name, option in settings.method.options.items()} | settings.options
    names = (
        settings.names if settings.takes_layer or settings.loaded.detects_objects else {**settings.names, "layer": ""}
    )
    bands = settings.bands.text if settings.bands else request.bands
    parts = [content(request.image), names, options, bands, *_edit(request)]
    text = json.dumps(parts, sort_keys=True, default=repr)
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    return digest if request.plane is None else f"{digest}/{request.plane}"


def subject(settings: Settings, request: Request) -> str:
    """Return a key that is equal for requests about the same target in the same image, for any layer and method."""
    if request.image is None or not Path(request.image).is_file():
        return ""
    names = {name: settings.names[name] for name in ("model", "target")}
    bands = settings.bands.text if settings.bands else request.bands
    least = settings.min_score if settings.loaded.detects_objects else 0.0
    text = json.dumps([content(request.image), names, least, bands, *_edit(request)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _edit(request: Request) -> list[str]:
    """Return what identifies the edit of the image."""
    return [request.edit, content(request.second) if request.second else ""] if request.edit else []


def content(image: str) -> str:
    """Return a hash of the content of a file, because Gradio uses several paths for one file."""
    status = Path(image).stat()
    return _digest(image, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _digest(path: str, modified: int, size: int) -> str:
    """Return the hash of a file; cached while its modification time and size do not change."""
    return hashes.sha256(path)


def find(settings: Settings) -> explainers.Explanation | None:
    """Return the cached explanation of this request at this layer, or None."""
    with _lock:
        explanation = _cache.get(_entry(settings))
        if explanation is not None:
            _cache.move_to_end(_entry(settings))
        return explanation


def put(settings: Settings, explanation: explainers.Explanation) -> None:
    """Add a finished explanation and remove the least recently used ones."""
    if not settings.key or _bytes(explanation) > LARGEST:
        return
    with _lock:
        _cache[_entry(settings)] = explanation
        _cache.move_to_end(_entry(settings))
        while sum(map(_bytes, _cache.values())) > BYTES:
            _cache.popitem(last=False)


def _entry(settings: Settings) -> tuple[str, str]:
    """Return the key without the plane, and the layer, which may differ from the requested one for a detection."""
    return settings.key.partition("/")[0], settings.layer if settings.takes_layer else ""


def _bytes(explanation: explainers.Explanation) -> int:
    tensors = (explanation.map, explanation.raw, explanation.scores)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
