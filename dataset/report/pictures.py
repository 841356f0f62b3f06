"""What is shown of single pictures: their photographs, small, and the maps of both classes of mistakes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.report.analysis.maps import pool
from dataset.settings import Settings

if TYPE_CHECKING:
    from PIL import Image

    from dataset.report.analysis.maps import Floats, Maps
    from models import Model

SIDES = (320, 256, 192, 144, 112)
QUALITY = 78
WHOLE = 11_000_000
"""Bytes of all photographs; base64 adds a third."""
MOST_EACH = 40_000
BATCH = 8

Read = Callable[[str], "Image.Image | None"]


def crop(photo: Image.Image, model: Model | None) -> Image.Image:
    """What the network saw of a photograph; all of it where no model tells."""
    return photo.convert("RGB") if model is None else model.crop(photo)


def small(picture: Image.Image, budget: int) -> tuple[str, int, int]:
    """A WebP of at most `budget` bytes where that is possible, as a data address, with its width and height."""
    from PIL import Image

    data, size = b"", picture.size
    for side in SIDES:
        scale = min(1.0, side / max(picture.size))
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        file = io.BytesIO()
        picture.resize(size, Image.Resampling.LANCZOS).save(file, "WEBP", quality=QUALITY, method=2)
        data = file.getvalue()
        if len(data) <= budget:
            break
    return "data:image/webp;base64," + base64.b64encode(data).decode(), size[0], size[1]


def data_address(pixels: Floats | None) -> str:
    """Pixels `[h, w, 3]` from 0 to 255 as a data address."""
    from PIL import Image

    file = io.BytesIO()
    if pixels is not None:
        Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def budget(count: int) -> int:
    """Bytes of each of so many photographs."""
    return min(MOST_EACH, WHOLE // max(1, count))


@dataclass(frozen=True, eq=False)
class Both:
    """The maps `[h, w]` of the predicted and of the expected class of a mistake, in the method's unit."""

    predicted: Floats
    expected: Floats

    @property
    def difference(self) -> Floats:
        """Above zero where the predicted class has more."""
        return self.predicted - self.expected


def both_maps(
    rows: Sequence[Mapping[str, Any]],
    maps: Maps,
    numbers: Mapping[int, int],
    read: Read,
    model: Model,
    settings: Mapping[str, Any],
) -> Iterator[tuple[int, Both]]:
    """The maps of both classes of mistakes, with the run's own method, layer and options; yields the place in `rows`.

    `rows` hold "row", "path", "prediction_index", "label_index", "target_index"; `numbers` is the map of a row. The map
    of the class that the run explained is the run's own. Photographs that cannot be read any more are left out.
    """
    for start in range(0, len(rows), BATCH):
        part = [(start + k, row, read(row["path"])) for k, row in enumerate(rows[start : start + BATCH])]
        there = [(k, row, photo) for k, row, photo in part if photo is not None]
        if not there:
            continue
        made = {}
        for name in ("prediction_index", "label_index"):
            ask = [(k, row, photo) for k, row, photo in there if row[name] != row["target_index"]]
            if ask:
                found = _explained([photo for _, _, photo in ask], [row[name] for _, row, _ in ask], model, settings)
                made.update({(k, name): pool(one, maps.size) for (k, _, _), one in zip(ask, found, strict=True)})
        for k, row, _ in there:
            own = maps.values[numbers[row["row"]]]
            yield k, Both(made.get((k, "prediction_index"), own), made.get((k, "label_index"), own))


def _explained(photos: list[Image.Image], targets: list[int], model: Model, settings: Mapping[str, Any]) -> Floats:
    """The maps `[n, h, w]` of these classes."""
    import torch  # torch takes seconds to start

    import explainers

    method = explainers.METHODS[settings["method"]]
    known = ("method", "layer", "options", "precision", "seed")
    options = Settings(**{name: settings[name] for name in known if name in settings}).method_options()
    images = torch.cat([model.prepare(photo) for photo in photos])
    images = images.to(next(model.network.parameters()).device)
    found = explainers.explain(settings["method"], model.network, images, targets, compare=False, **options)
    values = found.map.float().cpu().numpy().astype(float)
    values = np.where(np.isfinite(values), values, 0.0)
    return np.abs(values) if method.by_size else values
