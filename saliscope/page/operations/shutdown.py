"""SIGTERM lets running answers finish for some seconds, and refuses new requests with status 503."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from types import FrameType

from starlette.types import ASGIApp, Receive, Scope, Send

from saliscope import limits
from saliscope.compute.jobs import runs
from saliscope.page.serving.door.refusals import Refusal
from saliscope.page.serving.guard import CLOSE, HEADERS
from saliscope.page.shared import messages

ANSWERS = re.compile(r"/gradio_api/(queue/(join|data)|call/.+|run/.+|api/.+|upload)/?|/mcp/?")
"""Routes with answers. Others are short, or stay open as long as a page."""
ALLOWED = re.compile(r"/gradio_api/(cancel|reset)/?")
"""Routes that end running answers."""


class Shutdown:
    """The state of a server that may be stopping; `Middleware(Refusing, shutdown=...)` refuses its requests."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._open = 0

    def answering(self) -> bool:
        """Return whether answers are computed or sent."""
        return self._open > 0 or runs.running() > 0

    def wait(self) -> None:
        """Block until SIGTERM, and then until running answers have ended or `limits.STOP_SECONDS` have passed.

        Long methods then return their best map so far.
        """

        def request(number: int, frame: FrameType | None) -> None:
            self.requested.set()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second signal ends the process

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, request)
        while not self.requested.wait(1.0):
            pass
        self._until(limits.STOP_SECONDS)
        runs.stop_all()
        self._until(limits.STOP_MARGIN)

    def _until(self, seconds: float) -> None:
        end, quiet = time.monotonic() + seconds, 0
        # An answer is fetched with a second request, so the server must be idle for a moment.
        while time.monotonic() < end and quiet < 5:
            quiet = 0 if self.answering() else quiet + 1
            time.sleep(0.05)

    @contextlib.contextmanager
    def counted(self, path: str):  # type: ignore[no-untyped-def]
        """Count a request with an answer for the duration of the block."""
        counts = ANSWERS.fullmatch(path) is not None
        self._open += counts
        try:
            yield
        finally:
            self._open -= counts


class Refusing:
    """Middleware that counts requests with answers, and refuses new ones while the server stops."""

    def __init__(self, app: ASGIApp, shutdown: Shutdown) -> None:
        self.app, self.shutdown = app, shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_new = path == "/" or (scope["method"] == "POST" and not ALLOWED.fullmatch(path))
        if is_new and self.shutdown.requested.is_set():
            for message in Refusal(503, messages.STOPPING).answer([CLOSE, *HEADERS]):
                await send(message)
            return
        with self.shutdown.counted(path):
            await self.app(scope, receive, send)
