"""What must be set before gradio and torch are imported: nothing is reported to anybody, no type stubs are written, and
threads that compute in turns do not slow each other down.

Importing gradio parses the source of its sixty components and rewrites their `.pyi` files every time, 1.4 of 3.5
seconds; it also writes such files beside our own subclasses. Its metaclass passes over a class whose file is not found.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read at import; also switches off the Hub's telemetry
os.environ.setdefault("GRADIO_SSR_MODE", "False")
# Each thread that has computed has helpers of its own. Where there are more of them than processors GNU's OpenMP lets
# them sleep between two operations, and a network takes 1.5 times as long: here they wait a moment longer, and no more
# than that otherwise.
os.environ.setdefault("OMP_WAIT_POLICY", "active")
os.environ.setdefault("GOMP_SPINCOUNT", "300000")

try:
    import spaces  # a GPU for the length of a call, on a Space; must come before torch
except ImportError:
    spaces = None


@contextlib.contextmanager
def without_stubs() -> Iterator[None]:
    """Classes of components that are defined inside the block get no `.pyi` file."""
    find = inspect.getfile

    def hide(thing: Any) -> str:
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError("no stub wanted")
        return find(thing)

    inspect.getfile = hide
    try:
        yield
    finally:
        inspect.getfile = find


with without_stubs():
    import gradio

    import ui.tabs.components  # noqa: F401


__all__ = ["gradio", "spaces"]
