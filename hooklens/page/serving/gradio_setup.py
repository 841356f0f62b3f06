"""Settings that must be made before gradio and torch are imported.

They disable analytics and type stubs, and prevent threads that compute in turns from slowing each other down. Importing
gradio parses the source of its sixty components and rewrites their `.pyi` files each time, which takes 1.4 of 3.5
seconds, and also writes such files for subclasses in this package. Its metaclass skips classes whose file is not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

from hooklens.imports import defer

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read at import; also switches off the Hub's telemetry
os.environ.setdefault("GRADIO_SSR_MODE", "False")
# After every event, Gradio summarizes the times of the last 10,000 events with pandas for a page that we do not serve.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**12))
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")
# Each computing thread has its own OpenMP workers. If there are more workers than processors, GNU OpenMP lets them
# sleep between operations, which makes a network 1.5 times slower. A limited spin count lets them wait a bit longer.
os.environ.setdefault("OMP_WAIT_POLICY", "active")
os.environ.setdefault("GOMP_SPINCOUNT", "300000")

# One pool of memory for all threads, before there are threads: what one frees, another can use. With several pools,
# the process keeps about 100 MB more. As in explainers/passes/batches/memory.py, which is imported later.
if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
    ctypes.CDLL(None).mallopt(-8, 1)

spaces: Any
try:
    spaces = importlib.import_module("spaces")  # the shared GPU of a Space; must be imported before torch
except ImportError:
    spaces = None


@contextlib.contextmanager
def without_stubs() -> Iterator[None]:
    """Prevent `.pyi` files for components that are defined inside the block."""
    find = inspect.getfile

    def hide(object: Any) -> str:
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError("type stubs are disabled")
        return find(object)

    setattr(inspect, "getfile", hide)  # noqa: B010 mypy refuses a plain assignment
    try:
        yield
    finally:
        setattr(inspect, "getfile", find)  # noqa: B010


defer("pandas")  # Gradio imports it for tables, which the page does not have: 0.5 s and 40 MB
with without_stubs():
    import gradio

    import hooklens.page.components.components  # noqa: F401

# Gradio imports matplotlib for every event to choose its backend, in case that a handler draws with it: 40 MB.
setattr(gradio.utils, "MatplotlibBackendMananger", contextlib.nullcontext)  # noqa: B010 as above

__all__ = ["gradio", "spaces"]
