"""What the page changes in Gradio: imports, the messages of an event, and the compression of event streams."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest
from PIL import Image
from starlette.exceptions import HTTPException

from saliscope.page.serving.gradio_setup import gradio as gr  # isort: skip  (switches first)
from saliscope.page.components import view
from saliscope.page.components.components import Canvas, canvas, named
from saliscope.page.serving import streams
from saliscope.page.serving.blocks import Blocks
from saliscope.page.serving.streams import Streams
from tests.support.coroutines import finished

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_page_imports_neither_tables_nor_plots_nor_the_compiler() -> None:
    """They take 2 s and 240 MB. What something uses is imported then."""
    code = """
import sys
from saliscope.page import build
demo = build.build()
assert demo.app is None and demo.get_config_file()["components"]  # only `launch` creates the application
from saliscope import zoo
zoo.load_offered(zoo.default_name("efficientnet_lite0"))
from torchvision.ops import roi_align
import gradio
with gradio.utils.MatplotlibBackendMananger():  # as for every event
    demo._queue.events_recorded += 5
    demo._queue.compute_analytics_summary([{"function": "f", "status": "success", "process_time": 1.0}] * 5)
names = ("pandas.core", "pyarrow", "matplotlib", "torch._dynamo", "sympy")
names += ("rich", "gradio.cli.cli", "PIL.PdfImagePlugin")
assert not [name for name in names if name in sys.modules]
assert all(type(sys.modules[name]).__name__ == "Deferred" for name in ("gradio.external", "httpx._main"))
import pandas, torch
assert pandas.DataFrame({"a": [1]}).shape == (1, 1) and sys.modules["pandas"].__file__
from pandas.io.formats.style import Styler
supported = sys.modules["torchvision.ops.roi_align"].is_compile_supported
assert supported("cpu") is True and supported("mps") is False and "torch._dynamo" in sys.modules
import torch._dynamo.utils
assert torch._dynamo.utils.is_compile_supported is not supported
try:
    gradio.load("no/model", src="nothing")
except ValueError:
    pass
assert sys.modules["gradio.external"].__file__
from PIL import Image
assert "PDF" in Image.registered_extensions().values()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def page(kind: type[gr.Blocks]) -> tuple[gr.Blocks, Any, list[Any]]:
    """A page, its event, and the components that the event has as inputs and outputs."""
    with kind() as demo:
        parts = [canvas("a/a", "a"), named("a/b", "b", names="[]"), gr.Checkbox(), gr.Button(), canvas("a/c", "c")]
        parts[3].click(lambda *values: values, parts, parts)
    return demo, demo.fns[0], parts


def without_marker(message: Any) -> Any:
    """A message without the entry that Gradio adds to the props of components with templates by mistake."""
    if not isinstance(message, dict):
        return message
    props = {name: value for name, value in message.get("props", {}).items() if name != "__type__"}
    rest = {name: value for name, value in message.items() if name != "props"}
    return {**rest, "props": props} if props else rest


def test_an_event_sends_the_messages_of_gradio_and_creates_no_unchanged_component(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Oracle: Gradio's own page."""
    found, created, build = [], list[Any](), Canvas.__init__

    def count(self: Any, *rest: Any, **options: Any) -> None:
        created.append(self)
        build(self, *rest, **options)

    for kind in (gr.Blocks, Blocks):
        demo, event, parts = page(kind)
        state = gr.state_holder.SessionState(demo)
        values = [{"x": [1, 2]}, gr.update(names="[1]", value="n"), True, gr.update(interactive=False)]
        updates = [dict(zip(parts, values, strict=False)), {parts[2]: False}, {parts[0]: gr.skip()}]
        updates += [{parts[1]: "m", parts[0]: None}]
        created.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Canvas, "__init__", count)
            messages = [finished(demo.postprocess_data(event, dict(update), state)) for update in updates]
        assert bool(created) == (kind is gr.Blocks)
        given = ['{"a":1}', "name", True, "Run", {"path": "/etc/passwd"}]
        packed = [[without_marker(message) for message in step] for step in messages]
        found.append([packed, finished(demo.preprocess_data(event, given, state))])
    assert found[0] == found[1]
    assert next(iter(messages[0][1])) == "value", "the browser applies the fields in this order, with pauses"
    assert found[1][1][0] == {"a": 1} and found[1][1][4] is None
    with pytest.raises(ValueError, match="not specified as output"):
        finished(demo.postprocess_data(event, {gr.Button(): "x"}, state))


def sent(path: str, accepted: str, kind: str = "text/event-stream") -> tuple[dict[str, str], list[bytes]]:
    """Headers and parts of a stream of two messages behind the middleware."""
    messages = [b"data: " + bytes(f"{'word' * 500}{number}", "utf-8") + b"\n\n" for number in range(2)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
        for body in messages:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    received: list[Any] = []

    async def collect(message: Any) -> None:
        received.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"accept-encoding", accepted.encode())]}
    finished(Streams(app)(scope, None, collect))  # type: ignore[arg-type]
    headers = {name.decode(): value.decode() for name, value in received[0]["headers"]}
    return headers, [message["body"] for message in received[1:]]


def test_answers_are_compressed_message_by_message() -> None:
    plain = sent(streams.PATH, "identity")[1]
    headers, parts = sent(streams.PATH, "gzip, deflate, br")
    assert headers["content-encoding"] == "br" and "accept-encoding" in headers["vary"].lower()
    decoder = brotli.Decompressor()
    assert decoder.process(parts[0]) == plain[0], "complete before the next message"
    assert decoder.process(parts[1]) == plain[1] and len(parts[1]) < 40, "what is repeated is not sent again"
    assert brotli.decompress(b"".join(parts)) == b"".join(plain)

    headers, parts = sent(streams.PATH, "gzip")
    assert headers["content-encoding"] == "gzip" and gzip.decompress(b"".join(parts)) == b"".join(plain)
    assert zlib.decompressobj(31).decompress(parts[0]) == plain[0]
    for path, kind in (("/gradio_api/heartbeat/x", "text/event-stream"), (streams.PATH, "application/json")):
        assert sent(path, "br", kind) == ({"content-type": kind}, plain)


@pytest.mark.parametrize(
    ("path", "accepted"), [(streams.PATH, "identity"), (streams.PATH, "br"), (f"{streams.CALL}explain/1", "br")]
)
def test_a_stream_whose_session_has_ended_leaves_no_traceback(path: str, accepted: str) -> None:
    """Starlette raises RuntimeError for an HTTPException after the answer has started."""
    received: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        raise RuntimeError("response already started") from cause

    async def collect(message: Any) -> None:
        received.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"accept-encoding", accepted.encode())]}
    cause: Exception = HTTPException(404)
    finished(Streams(app)(scope, None, collect))  # type: ignore[arg-type]
    assert received[-1]["more_body"] is False
    cause = ValueError()
    with pytest.raises(RuntimeError):
        finished(Streams(app)(scope, None, collect))  # type: ignore[arg-type]


def test_the_image_of_a_crop_is_sent_unless_the_browser_holds_it() -> None:
    image = Image.effect_mandelbrot((80, 60), (-2, -1.2, 0.8, 1.2), 60)
    first = view.crop(image, [])
    assert first["src"].startswith("data:image/jpeg") and view.crop(image, [first["key"]]) == {"key": first["key"]}
    other = image.copy()
    other.putpixel((3, 3), 255 - other.getpixel((3, 3)))
    assert (
        view.crop(other, [first["key"]])["src"] and view.crop(image.rotate(90, expand=True), [])["key"] != first["key"]
    )
    assert view.sent_with({"number": 7, "crops": ["a"]}) == (7, ["a"])
    for invalid in (None, "x", {"number": "7", "crops": "abc"}, [1], {"crops": {}}):
        assert view.sent_with(invalid) == (None, [])
