"""Results shared by all users: the most recently used of a kind (`Recent`), and finished explanations of long methods.

The key of an explanation consists of the network, the layer, the class, the method with all options, and the bytes of
the image, so users share results without access to each other's images. Stochastic methods are seeded. Stopped runs are
not cached, and the Explain button bypasses the cache.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import explainers
from saliscope import hashes, limits
from saliscope.compute.answers import Settings
from saliscope.compute.request import Request
from saliscope.images import examples

T = TypeVar("T")
MAX_CACHED = 64
"""Entries of a `Recent`."""
BYTES = 128 * limits.MB
"""Size limit of all cached tensors."""
LARGEST = 32 * limits.MB
"""Size limit of one explanation."""


class Recent(Generic[T]):
    """The most recently used entries by key, whose sizes sum to at most `most()`; several threads may use it."""

    def __init__(self, most: Callable[[], int] = lambda: MAX_CACHED, size: Callable[[T], int] = lambda _: 1) -> None:
        self._most, self._size = most, size
        self._entries: OrderedDict[object, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object) -> T | None:
        """Return an entry, or None."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: object, value: T) -> None:
        """Add an entry and remove the least recently used ones."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while sum(map(self._size, self._entries.values())) > self._most():
                self._entries.popitem(last=False)


def key(settings: Settings, request: Request) -> str:
    """Return a key that is equal for requests with the same result, or an empty string without an image.

    The selected plane follows after a slash. The key is a hash, so it can be sent to the browser, which uses it for its
    own cache.
    """
    options = {name: option.default for name, option in settings.method.options.items()} | settings.options
    has_layer = settings.method.takes_layer or settings.loaded.detects_objects
    digest = _hash(settings, request, settings.names if has_layer else settings.names | {"layer": ""}, options)
    return digest if request.plane is None or not digest else f"{digest}/{request.plane}"


def subject(settings: Settings, request: Request) -> str:
    """Return a key that is equal for requests about the same target in the same image, for any layer and method."""
    names = {name: settings.names[name] for name in ("model", "target")}
    return _hash(settings, request, names, settings.min_score if settings.loaded.detects_objects else 0.0)


def _hash(settings: Settings, request: Request, *parts: Any) -> str:
    """Return a hash of the image, its bands and its edit, and of these parts; an empty string without an image."""
    if request.image is None or not Path(request.image).is_file():
        return ""
    bands = settings.bands.text if settings.bands else request.bands
    edit = [request.edit, content(request.second) if request.second else ""] if request.edit else []
    text = json.dumps([content(request.image), *parts, bands, *edit], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def content(image: str) -> str:
    """Return a hash of the content of a file, because Gradio uses several paths for one file."""
    status = Path(image).stat()
    return _digest(image, status.st_mtime_ns, status.st_size)


def other_examples(images: Iterable[str]) -> dict[str, str]:
    """Return the paths of the examples by their descriptions, without those that have the content of an image."""
    known = {content(image) for image in images}
    found = {each.alt: str(each.path) for each in examples.all_examples().values()}
    return {name: path for name, path in found.items() if content(path) not in known}


@lru_cache(maxsize=256)
def _digest(path: str, modified: int, size: int) -> str:
    """Return the hash of a file; cached while its modification time and size do not change."""
    return hashes.sha256(path)


def find(settings: Settings) -> explainers.Explanation | None:
    """Return the cached explanation of this request at this layer, or None."""
    return _cache.get(_entry(settings))


def put(settings: Settings, explanation: explainers.Explanation) -> None:
    """Add a finished explanation, unless it is too large."""
    if settings.key and _bytes(explanation) <= LARGEST:
        _cache.put(_entry(settings), explanation)


def _entry(settings: Settings) -> tuple[str, str]:
    """Return the key without the plane, and the layer, which may differ from the requested one for a detection."""
    return settings.key.partition("/")[0], settings.layer if settings.method.takes_layer else ""


def _bytes(explanation: explainers.Explanation) -> int:
    tensors = (explanation.map, explanation.raw, explanation.scores)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


_cache = Recent[explainers.Explanation](lambda: BYTES, _bytes)
