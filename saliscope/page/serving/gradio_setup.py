"""Settings that must be made before gradio is imported.

They disable analytics and type stubs. Importing gradio parses the source of its sixty components and rewrites their
`.pyi` files each time, which takes 1.4 of 3.5 seconds, and also writes such files for subclasses in this package. Its
metaclass skips classes whose file is not found.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

from PIL import Image

from saliscope.imports import defer
from saliscope.page.serving.before_torch import spaces

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read at import; also switches off the Hub's telemetry
os.environ.setdefault("GRADIO_SSR_MODE", "False")
# After every event, Gradio summarizes the times of the last 10,000 events with pandas for a page that we do not serve.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(10**12))
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")


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


@contextlib.contextmanager
def without_decoders() -> Iterator[None]:
    """Prevent that Pillow imports its decoders of all formats, which it does when it needs one of them."""
    load = Image.init
    setattr(Image, "init", lambda: False)  # noqa: B010 as above
    try:
        yield
    finally:
        setattr(Image, "init", load)  # noqa: B010


defer("pandas")  # Gradio imports it for tables, which the page does not have: 0.5 s and 40 MB
# Parts of Gradio and of its client for HTTP that the page does not use: command lines, models of the Hub, workflows.
defer("gradio.cli", "deploy")
defer("gradio.external", "load", "load_chat", "load_openapi")
defer("gradio.workflow", "Workflow")
defer("httpx._main", "main")
with without_stubs(), without_decoders():
    import gradio
    import gradio.http_server

    import saliscope.page.components.components  # noqa: F401

# Gradio imports matplotlib for every event to choose its backend, in case that a handler draws with it: 40 MB.
setattr(gradio.utils, "MatplotlibBackendMananger", contextlib.nullcontext)  # noqa: B010 as above
# On a Space, Gradio starts a server that replaces the code of the running page. Without the package `spaces` its thread
# ends with an error.
setattr(gradio.http_server, "get_space", lambda: None)  # noqa: B010 as above

__all__ = ["gradio", "spaces"]
