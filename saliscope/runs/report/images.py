"""Thumbnails of images, maps of other classes, and links that open an image in the app."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

import explainers
from explainers import METHODS
from saliscope.errors import Refused
from saliscope.images import examples
from saliscope.images.pixels import encode
from saliscope.runs.formats import by_size
from saliscope.runs.report.analysis.columns import distinct
from saliscope.runs.rows import Floats
from saliscope.runs.settings import Settings
from saliscope.zoo import Model, Preparation
from saliscope.zoo.model import upright

SIDES = (320, 256, 192, 144, 112)
QUALITY = 78
WHOLE = 11_000_000
"""Bytes of all images in total; base64 adds a third."""
MOST_EACH = 40_000


def crop(image: Image.Image, preparation: Preparation | None) -> Image.Image:
    """Return the part of an image that the network received, or the whole image if that is not known."""
    return image.convert("RGB") if preparation is None else preparation.crop(upright(image))


def small(image: Image.Image, budget: int) -> dict[str, Any]:
    """Return a WebP `image` of at most `budget` bytes, if possible, as a data URL, with its size `w` and `h`."""
    for side in SIDES:
        scale = min(1.0, side / max(image.size))
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        data = encode(image.resize(size, Image.Resampling.LANCZOS), "WEBP", quality=QUALITY, method=2)
        if len(data) <= budget:
            break
    return {"image": "data:image/webp;base64," + base64.b64encode(data).decode(), "w": size[0], "h": size[1]}


def data_address(pixels: Floats) -> str:
    """Return pixels `[h, w, 3]` from 0 to 255 as a data URL."""
    data = encode(Image.fromarray(pixels.astype(np.uint8)), "PNG")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def budget(count: int) -> int:
    """Return the maximum number of bytes per image for this number of images."""
    return min(MOST_EACH, WHOLE // max(1, count))


def explain(image: Image.Image, target: int, model: Model, settings: Mapping[str, Any]) -> Floats:
    """Return the map `[h, w]` of this class."""
    options = Settings.of(settings).method_options()
    inputs = model.prepare(image).to(next(model.network.parameters()).device)
    explanation = explainers.explain(settings["method"], model.network, inputs, target, compare=False, **options)
    values = explanation.placed[0].float().cpu().numpy().astype(float)
    values = np.where(np.isfinite(values), values, 0.0)
    return np.abs(values) if by_size(settings["method"]) else values


def check_link(address: str | None) -> None:
    """Check that the address of an app is a URL, if there is one.

    Errors   Refused
    """
    if address is not None and not address.startswith(("http://", "https://")):
        raise Refused(
            f"{address!r} is not a URL. Use one that starts with http:// or https://, such as http://127.0.0.1:7860."
        )


class Links:
    """Links of the images of a run into an app at `address`, by the name of an example or by SHA-256."""

    def __init__(self, address: str, settings: Mapping[str, Any], classes: Sequence[str] = ()) -> None:
        self.address, self.settings = address.rstrip("/"), settings
        self.shared = set(classes) - set(distinct(classes))
        run_settings = dataclasses.replace(Settings.of(settings), layer=None)
        known, options = METHODS[run_settings.method].options, run_settings.method_options()
        # Those that differ from the defaults of the method, including seed and precision of the run.
        self.options = {name: value for name, value in options.items() if value != known[name].default}
        self.examples: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, KeyError):  # the examples of the app may not be installed
            found = examples.all_examples().values()
            self.examples = {hashlib.sha256(each.path.read_bytes()).hexdigest(): each.id for each in found}

    def of(self, row: Mapping[str, Any]) -> tuple[str, bool]:
        """Return the URL of a row, and whether every app has its image.

        A link never contains an image. An image that is not an example only opens in an app that was started with the
        run; other apps open with the settings and tell the user what to do.
        """
        digest = row.get("sha256") or ""
        example = self.examples.get(digest)
        target = row.get("target_index") if row.get("target") in self.shared else row.get("target")
        parameters = {
            "model": self.settings.get("model"),
            "layer": self.settings.get("layer"),
            "class": target,
            "method": self.settings.get("method"),
            "options": json.dumps(self.options) if self.options else "",
            "example": example or digest or "none",
        }
        query = urllib.parse.urlencode({name: value for name, value in parameters.items() if value not in (None, "")})
        return f"{self.address}/?{query}", example is not None
