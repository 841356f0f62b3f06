"""The picture of the stored answer at the start of the HTML."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from pathlib import Path
from typing import Any

import brotli
import numpy as np
import torch
from PIL import Image

import explainers
from explainers.maps.overlays import RULE
from saliscope.page.first_paint.bundle import SMALLEST, Bundle
from saliscope.page.first_paint.first_paint import Compressed, FirstPaint, head
from saliscope.page.overlay import landing
from saliscope.session import model_cache
from tests.support.coroutines import finished

PAGE = b"<!doctype html><html><head><title>x</title></head><body></body></html>"


def served(elements: str | None, path: str = "/", root: str = "") -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body of an application behind the middleware that sends the page in two parts."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(PAGE)).encode()), (b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": PAGE[:10], "more_body": True})
        await send({"type": "http.response.body", "body": PAGE[10:]})

    sent: list[Any] = []

    async def collect(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "root_path": root, "headers": []}
    finished(FirstPaint(app, elements)(scope, None, collect))  # type: ignore[arg-type]
    return dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


def test_the_elements_come_before_everything_else_in_the_head() -> None:
    headers, body = served("<script>first</script>")
    assert body == PAGE.replace(b"<head>", b"<head><script>first</script>")
    assert headers[b"content-length"] == str(len(body)).encode() and headers[b"content-type"] == b"text/html"
    assert served("<b>", path="/host", root="/host")[1] != PAGE
    assert served("<b>", path="/other")[1] == PAGE == served(None)[1]


def drawn_by_the_library(stored: dict[str, Any]) -> tuple[Image.Image, Any]:
    """The stored crop, and the stored map over it."""
    packed, source = stored["view"]["map"], stored["view"]["crop"]["src"]
    values = np.frombuffer(base64.b64decode(packed["b64"]), packed["dtype"]).astype("float32") * packed.get("scale", 1)
    crop = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("RGB")
    drawn = explainers.overlay(crop, torch.from_numpy(values.reshape(packed["h"], packed["w"])))
    return crop, np.asarray(drawn, int)


def muted_by_css(crop: Image.Image, page: str) -> Image.Image:
    """The crop as browsers filter it: https://www.w3.org/TR/filter-effects-1/#saturateEquivalent."""
    found = re.search(r"filter: saturate\(([\d.]+)\) brightness\(([\d.]+)\)", page)
    assert found
    keep, light = map(float, found.groups())
    assert (keep, light) == (RULE["coarse_color"], RULE["coarse_light"])
    gray = np.asarray([0.213, 0.715, 0.072]) * (1 - keep)
    pixels = np.asarray(crop, float) @ (keep * np.eye(3) + gray[None]).T * light
    return Image.fromarray(pixels.round().clip(0, 255).astype("uint8")).convert("RGBA")


def test_the_image_has_the_size_of_the_map() -> None:
    """Otherwise the first map of the page moves everything below it."""
    root = Path(landing.__file__).parents[1]
    page, first = (root / name for name in ("static/page/page.css", "first_paint/first_paint.html"))
    others = re.findall(r":root \{ --hl-others: (\d+)px", page.read_text())
    assert others and re.findall(r"100vh - (\d+)px", first.read_text()) == others


def test_the_picture_is_the_stored_map(monkeypatch: Any) -> None:
    for name in ("SALISCOPE_MODEL", "SALISCOPE_MODELS"):
        monkeypatch.delenv(name, raising=False)
    text = head("auto")
    assert text is not None and not re.search("CONTENT|DEFAULTS|STORED", text)
    stored = landing.load_stored("auto")
    assert stored is not None and json.dumps(stored["headline"][1])[1:-1] in text
    found = re.search(r"const defaults = (\{.*?\})", text)
    assert found and json.loads(found[1]) == {
        "model": "efficientnet_lite0", "layer": "head", "method": "grad_cam", "example": "dog",
    }  # fmt: skip
    crop, expected = drawn_by_the_library(stored)
    layer = Image.open(io.BytesIO(landing.LAYER.read_bytes())).convert("RGBA").resize(crop.size)
    picture = np.asarray(Image.alpha_composite(muted_by_css(crop, text), layer).convert("RGB"), int)
    assert np.abs(picture - expected).mean() < 4, "run `python -m saliscope.page.overlay.landing`"
    assert head("resnet50") is None
    sent = re.search(r"stored = (\{.*\});\n", text)
    assert sent and json.loads(json.loads(sent[1])["hl-overlay"]["value"])["map"] == stored["view"]["map"]


def test_the_bundle_replaces_the_elements_of_gradio() -> None:
    bundle = Bundle(b"", "page-1.js", "<script entry></script>", "<link sheet>")
    page = f'<head>{bundle.sheet}{bundle.entry}<script>c = {{"theme_hash": "a1"}}</script></head>'
    edited = FirstPaint(None, "<b>", bundle).edit(page)  # type: ignore[arg-type]
    assert edited.startswith("<head><script>window.saliscope") and '<b><link rel="preload"' in edited
    assert 'src="hl/page-1.js"' in edited and "theme.css?v=a1" in edited
    assert bundle.entry not in edited and bundle.sheet not in edited
    assert FirstPaint(None, "<b>", bundle).edit("<head></head>") == "<head><b></head>", "another version of Gradio"  # type: ignore[arg-type]


def test_the_page_is_compressed_further_once_the_model_is_loaded(monkeypatch: Any) -> None:
    monkeypatch.setattr(model_cache, "ready", threading.Event())
    compressed, page = Compressed(), b"".join(f"<p>{k * k}</p>".encode() for k in range(3000))
    fast = compressed.get(page)
    model_cache.ready.set()
    assert compressed.get(page) in (fast, brotli.compress(page, quality=SMALLEST))
    for thread in threading.enumerate():
        if thread.name == "compress":
            thread.join()
    smallest = compressed.get(page)
    assert len(smallest) < len(fast) and brotli.decompress(smallest) == page == brotli.decompress(fast)
    assert brotli.decompress(compressed.get(b"another address")) == b"another address"
