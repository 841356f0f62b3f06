"""Images and arrays as text inside HTML. Images need Pillow, which is optional."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image


def has_pillow() -> bool:
    """Return whether images can be encoded."""
    return importlib.util.find_spec("PIL") is not None


def image_address(image: Image.Image) -> str:
    """Encode an image as the address of a JPEG file, in place."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def png(image: Image.Image) -> bytes:
    """Encode an image as a PNG file with 256 colors, which is a third as large as one with all colors."""
    file = io.BytesIO()
    image.convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return file.getvalue()


def packed_map(values: Tensor) -> dict[str, Any]:
    """Encode a map [h, w] for `floats` of saliscope/page/static/wire.js.

    Small maps are exact (float32). Others are float16 relative to their maximum: 11 bits of each value.
    """
    values = values.detach().to("cpu", torch.float32)
    packed: dict[str, Any] = {"h": values.shape[0], "w": values.shape[1], "dtype": "float32"}
    if values.numel() > 64 * 64:
        scale = float(values[values.isfinite()].abs().max()) if bool(values.isfinite().any()) else 0.0
        packed |= {"dtype": "float16", "scale": scale or 1.0}
        values = (values / (scale or 1.0)).half()
    data = bytes(values.contiguous().view(torch.uint8).flatten().tolist())
    return packed | {"b64": base64.b64encode(data).decode("ascii")}


def script_json(value: object) -> str:
    """Encode a value as JSON inside a script element, which no text in it can end."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def escape(text: object) -> str:
    """Encode text for HTML, also inside attributes."""
    return html.escape(str(text))


def style() -> str:
    """Return the style sheet of all displays as an element."""
    return f"<style>{Path(__file__).with_name('display.css').read_text(encoding='utf-8')}</style>"
