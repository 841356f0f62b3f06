"""What a notebook shows of a run: its main values, and a few images with their maps. No network runs for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image

from explainers import Display, overlay
from saliscope.runs import pages
from saliscope.runs.finished.finished_run import FinishedRun
from saliscope.runs.formats import by_size
from saliscope.runs.report.images import small
from saliscope.runs.rows import map_of
from saliscope.zoo.model import upright

SHOWN = 6
"""Number of images, evenly spaced over the rows."""
SIDE = 192
"""The longer side of a shown image in pixels."""
BYTES = 12_000
"""Maximum size of a shown image, if possible."""


def display(run: FinishedRun, values: Iterable[tuple[str, object]], text: str) -> Display:
    """Return the values of a run as a table and its images as a grid; `text` is shown by hosts without HTML."""
    signed = not by_size(run.data.settings.get("method", ""))
    numbers = np.unique(np.linspace(0, max(0, len(run.data) - 1), SHOWN).round().astype(int))
    rows = run.data.take(numbers).to_pylist() if len(run.data) else []
    drawn = [(row, _draw(run, row, signed)) for row in rows]
    figures = [(row, image and small(image, BYTES)) for row, image in drawn]
    content = pages.notebook(rows=list(values), figures=figures)
    return Display(content, text, [image for _, image in drawn if image is not None])


def _draw(run: FinishedRun, row: dict[str, Any], signed: bool) -> Image.Image | None:
    """Return the part of an image that the network received with its map; only the map if the image is gone."""
    if row["map"] is None:
        return None
    values, image = torch.from_numpy(map_of(row)), run.image(row["path"], row["sha256"])
    preparation = run.preparation
    if image is None or preparation is None:
        height, width = values.shape
        image = Image.new("RGB", (SIDE, max(1, round(SIDE * height / width))), "gray")
    else:
        image = preparation.crop(upright(image))
        image.thumbnail((SIDE, SIDE))
    return overlay(image, values, signed=signed)
