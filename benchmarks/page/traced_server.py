"""Serve the page of a tree and write when each part of an answer happens, for `python -m benchmarks.page`.

`python traced_server.py TREE FILE serve --port 7000` serves the page of TREE, which may be another version, and appends
lines "seconds name" to FILE. The names are those of `click` in `__main__.py`.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

TREE, FILE = sys.argv[1:3]
sys.path[0] = TREE  # instead of the folder of this file
lines = open(FILE, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 open until the server ends


def note(name: str) -> None:
    """Write the time of an event, comparable with the clock of a browser on the same machine."""
    lines.write(f"{time.time():.4f} {name}\n")


def patch(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by `wrap(function)`."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrap(original)))


def requests(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Note each request that asks for something."""

    async def wrapper(self: Any, scope: Any, *rest: Any) -> Any:
        if scope.get("method") == "POST":
            note(f"request {scope['path'].rpartition('/')[2] or 'join'}")
        return await answer(self, scope, *rest)

    return wrapper


def steps(explain: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Note the start of the handler and its steps."""

    def wrapper(*values: Any, **options: Any) -> Iterator[Any]:
        note("handler")
        for step in explain(*values, **options):
            note(f"step {type(step).__name__}")
            yield step

    return wrapper


def model(work: Callable[..., Any]) -> Callable[..., Any]:
    """Note start and end of the computation of a map."""

    def wrapper(*values: Any, **options: Any) -> Any:
        note("model")
        try:
            return work(*values, **options)
        finally:
            note("computed")

    return wrapper


def messages(send: Callable[..., Any]) -> Callable[..., Any]:
    """Note messages of the queue to the browser, by the order of the steps of the handler."""

    def wrapper(self: Any, event: Any, message: Any) -> Any:
        note(f"sent {getattr(getattr(message, 'msg', ''), 'value', '')}")
        return send(self, event, message)

    return wrapper


def push(add: Callable[..., Any]) -> Callable[..., Any]:
    """Note jobs that enter the queue."""

    async def wrapper(*values: Any, **options: Any) -> Any:
        note("queued")
        return await add(*values, **options)

    return wrapper


def main() -> None:
    """Serve with the notes."""
    from saliscope.__main__ import main as serve
    from saliscope.page.serving.gradio_setup import gradio
    from saliscope.page.serving.guard import Guard
    from saliscope.session import engine, network_calls

    patch(Guard, "__call__", requests)
    patch(gradio.queueing.Queue, "push", push)
    patch(gradio.queueing.Queue, "send_message", messages)
    patch(engine, "explain", steps)
    patch(network_calls, "explain", model)
    sys.argv[1:] = sys.argv[3:]
    serve(sys.argv[1:])


if __name__ == "__main__":
    main()
