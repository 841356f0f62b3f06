"""Gradio adds headers for other websites outside of all middleware that one can give it, so this comes first."""

from __future__ import annotations

from typing import Any

from saliscope.page.serving.door.refusals import App, Message, Receive, Send

ORIGIN = b"origin"


class WithoutOrigin:
    """Hides the header `Origin` from Gradio, which answers it with CORS headers, and leaves it to the guard."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        origin = next((value for name, value in scope.get("headers", ()) if name == ORIGIN), None)
        if origin is not None:
            headers = [pair for pair in scope["headers"] if pair[0] != ORIGIN]
            scope = {**scope, "headers": headers, "state": {**scope.get("state", {}), "origin": origin}}
        await self.app(scope, receive, send)


def hide_origins(app: Any) -> None:
    """Put `WithoutOrigin` in front of an application that runs.

    Errors   RuntimeError if it has no stack of middleware, so that Gradio would let other websites read the page
    """
    if getattr(app, "middleware_stack", None) is None:
        raise RuntimeError("Gradio runs without a stack of middleware, so other websites could read the page.")
    app.middleware_stack = WithoutOrigin(app.middleware_stack)
