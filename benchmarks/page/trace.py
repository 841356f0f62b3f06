"""Write when each part of an answer happens, for `python -m benchmarks.page`.

`install(FILE)` runs in the process of a server, which may be another version of the project, and appends lines
"seconds name" to FILE. The names are those of `parts_of` in `__main__.py`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any


def install(file: str) -> None:
    """Note requests, steps of the handler, computations of maps, and messages of the queue."""
    import saliscope.page.serving.before_torch  # noqa: F401  must come before torch
    from saliscope.page.serving.gradio_setup import gradio
    from saliscope.page.serving.guard import Guard
    from saliscope.session import engine, network_calls

    lines = open(file, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 open until the server ends

    def note(name: str) -> None:
        """Write the time of an event, comparable with the clock of a browser on the same machine."""
        lines.write(f"{time.time():.4f} {name}\n")

    def before(owner: Any, name: str, event: Callable[..., str]) -> Callable[..., Any]:
        """Note an event with the name of `event(*arguments)` before each call, and return the original function."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*values: Any, **options: Any) -> Any:
            note(event(*values, **options))
            return original(*values, **options)

        setattr(owner, name, wrapper)
        return original

    def steps(*values: Any, **options: Any) -> Iterator[Any]:
        note("handler")
        for step in explain(*values, **options):
            note(f"step {type(step).__name__}")
            yield step

    def model(*values: Any, **options: Any) -> Any:
        note("model")
        try:
            return compute(*values, **options)
        finally:
            note("computed")

    before(Guard, "__call__", lambda self, scope, *_: f"request {scope.get('path', '').rpartition('/')[2]}")
    sent = "sent {}".format
    before(gradio.queueing.Queue, "send_message", lambda self, event, message: sent(getattr(message.msg, "value", "")))
    explain, engine.explain = engine.explain, functools.wraps(engine.explain)(steps)
    compute, network_calls.explain = network_calls.explain, functools.wraps(network_calls.explain)(model)
