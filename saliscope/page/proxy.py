"""Access to everything that needs torch, which a thread imports after the page is served."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from typing import Any

DELAY = 3.0
"""Seconds after which torch is imported, if no page is opened before: the first page would wait for both."""
wanted = threading.Event()
"""Set when a page asks for something."""


def features() -> Any:
    """Return the module with the handlers of the page, which imports torch."""
    wanted.set()
    return importlib.import_module("saliscope.page.features")


def answers() -> Any:
    """Return the module with the answers of the API."""
    features()
    return importlib.import_module("saliscope.page.api.answers")


def start(model: str, own: Mapping[str, Any] | None, device: str) -> None:
    """Import torch and load the first model in a thread, unless it is loaded. `own` is as for `zoo.add`."""

    def load() -> None:
        wanted.wait(DELAY)
        model_cache: Any = importlib.import_module("saliscope.compute.model_cache")
        if not model_cache.ready.is_set():
            model_cache.use_device(device)
            model_cache.start(model, own)
        features()

    threading.Thread(target=load, name="start", daemon=True).start()
