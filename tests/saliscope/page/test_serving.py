"""How answers are sent: compressed message by message, kept by browsers, and without what a browser holds already."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest
from PIL import Image
from starlette.exceptions import HTTPException

from saliscope.page import events
from saliscope.page.components import view
from saliscope.page.files import address
from saliscope.page.serving import streams
from saliscope.page.serving.caching import IMMUTABLE, Caching
from saliscope.page.serving.streams import Streams
from tests.saliscope.page.guarded import Seen, respond, send_request
from tests.support.coroutines import finished

MESSAGES = [b"data: " + bytes(f"{'word' * 500}{number}", "utf-8") + b"\n\n" for number in range(2)]


def sent(
    path: str, accepted: str, kind: str = "text/event-stream", error: Exception | None = None
) -> tuple[dict[str, str], list[bytes]]:
    """Headers and parts of a stream of two messages behind the middleware, which may end with an error."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
        for body in MESSAGES:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        if error:
            raise RuntimeError("response already started") from error
        await send({"type": "http.response.body", "body": b""})

    seen = Seen()
    finished(send_request(Streams(app), seen, "GET", path, headers={"accept-encoding": accepted}))  # type: ignore[arg-type]
    return {name.decode(): values[0].decode() for name, values in seen.headers.items()}, seen.parts


def test_answers_are_compressed_message_by_message() -> None:
    headers, parts = sent(streams.PATH, "gzip, deflate, br")
    assert headers["content-encoding"] == "br" and "accept-encoding" in headers["vary"].lower()
    decoder = brotli.Decompressor()
    assert decoder.process(parts[0]) == MESSAGES[0], "complete before the next message"
    assert decoder.process(parts[1]) == MESSAGES[1] and len(parts[1]) < 40, "what is repeated is not sent again"
    assert brotli.decompress(b"".join(parts)) == b"".join(MESSAGES)

    headers, parts = sent(streams.PATH, "gzip")
    assert headers["content-encoding"] == "gzip" and gzip.decompress(b"".join(parts)) == b"".join(MESSAGES)
    assert zlib.decompressobj(31).decompress(parts[0]) == MESSAGES[0]
    for path, kind in (("/gradio_api/heartbeat/x", "text/event-stream"), (streams.PATH, "application/json")):
        assert sent(path, "br", kind) == ({"content-type": kind}, [*MESSAGES, b""])


def test_a_stream_whose_session_has_ended_leaves_no_traceback() -> None:
    """Starlette raises RuntimeError for an HTTPException after the answer has started."""
    for path, accepted in ((streams.PATH, "identity"), (streams.PATH, "br"), (f"{streams.CALL}explain/1", "br")):
        assert len(sent(path, accepted, error=HTTPException(404))[1]) == 3
        with pytest.raises(RuntimeError):
            sent(path, accepted, error=ValueError())


def test_only_files_with_a_hash_are_kept_without_a_check() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        status = 404 if "missing" in scope["path"] else 200
        await respond(send, status)

    for path, expected in {
        "/assets/Index-lnVPVsWk.js": [IMMUTABLE.encode()],
        "/hl/page-0123456789abcdef.js": [IMMUTABLE.encode()],
        "/hl/examples-0123456789abcdef.jpg": [IMMUTABLE.encode()],
        "/assets/missing.js": None,
        "/assets/missing-lnVPVsWk.js": None,
        "/": None,
    }.items():
        seen = Seen()
        finished(send_request(Caching(app), seen, "GET", path))  # type: ignore[arg-type]
        assert seen.headers.get(b"cache-control") == expected, path


def test_the_image_of_a_crop_is_sent_unless_the_browser_holds_it() -> None:
    image = Image.effect_mandelbrot((80, 60), (-2, -1.2, 0.8, 1.2), 60)
    first = view.crop(image, [])
    assert first["src"].startswith("data:image/jpeg") and view.crop(image, [first["key"]]) == {"key": first["key"]}
    other = image.copy()
    other.putpixel((3, 3), 255 - other.getpixel((3, 3)))
    for changed in (other, image.rotate(90, expand=True)):
        assert "src" in view.crop(changed, [first["key"]])
    assert events.parse({"crops": ["a", 1], "number": 7}, "session").crops == ("a",)
    for invalid in (None, "x", {"number": "7", "crops": "abc"}, [1], {"crops": {}}):
        asked = events.parse(invalid, None)
        assert (asked.number, asked.crops, asked.form, asked.data) == (None, (), {}, {})


def test_the_address_of_a_file_is_encoded() -> None:
    assert address(Path("/tmp/a b/50% #1?.jpg")) == "gradio_api/file=/tmp/a%20b/50%25%20%231%3F.jpg"
