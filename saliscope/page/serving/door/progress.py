"""The progress of uploads. Gradio stores every upload name whose progress is requested, and never removes one.

Therefore only names of uploads reach it, and at most `MOST` of them, which take some megabytes. Later uploads have no
progress bar until the page is started again. The browser chooses the name, and often requests the progress before its
upload arrives.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from urllib.parse import parse_qs

from saliscope.page.serving.door.refusals import Send

PATH = re.compile(r"/gradio_api/upload_progress/?")
NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
MOST, KNOWN = 20_000, 1_000
"""Names that reach Gradio in total, at about a kilobyte each, and latest names whose progress may be requested."""
WAIT, STEP = 3.0, 0.1
"""Seconds in which the upload must arrive, and between two checks."""
DONE = b'data: {"msg": "done"}\n\n'
"""Gradio's message at the end of an upload."""


class Progress:
    """The names of the latest uploads. All methods are called in the event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._passed = 0

    def of_upload(self, query: bytes) -> bytes:
        """Return the query of an upload, without its name if that is not passed on."""
        name = _name(query)
        if not name or (name not in self._known and self._passed >= MOST):
            return b""
        self._passed += name not in self._known
        self._known[name] = None
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        return b"upload_id=" + name.encode()

    async def is_known(self, query: bytes) -> bool:
        """Wait a moment for an upload, and return whether it is known."""
        name = _name(query)
        for _ in range(round(WAIT / STEP) if name else 0):
            if name in self._known:
                return True
            await asyncio.sleep(STEP)
        return False


def _name(query: bytes) -> str:
    names = parse_qs(query.decode("latin-1")).get("upload_id", [])
    return names[0] if len(names) == 1 and NAME.fullmatch(names[0]) else ""


async def send_done(send: Send) -> None:
    """Answer that an upload has ended."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": DONE})
