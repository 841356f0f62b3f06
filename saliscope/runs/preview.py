"""What a notebook shows of a run: its main values, and a few images with their maps. No network runs for it."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image

from explainers import Display, overlay
from saliscope.runs.finished.finished_run import FinishedRun
from saliscope.runs.formats import by_size
from saliscope.runs.report.images import small
from saliscope.runs.results import table
from saliscope.runs.rows import map_of
from saliscope.zoo.model import upright

SHOWN = 6
"""Number of images, evenly spaced over the rows."""
SIDE = 192
"""The longer side of a shown image in pixels."""
BYTES = 12_000
"""Maximum size of a shown image, if possible."""
GRID = "display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; max-width: 1000px"


def display(run: FinishedRun, values: Iterable[tuple[str, object]], text: str) -> Display:
    """Return the values of a run as a table and its images as a grid; `text` is shown by hosts without HTML."""
    signed = not by_size(run.data.settings.get("method", ""))
    numbers = np.unique(np.linspace(0, max(0, len(run.data) - 1), SHOWN).round().astype(int))
    rows = run.data.take(numbers).to_pylist() if len(run.data) else []
    drawn = [(row, _draw(run, row, signed)) for row in rows]
    figures = "".join(_figure(row, image) for row, image in drawn)
    content = f'{table(list(values))}<div style="{GRID}">{figures}</div>'
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


def _figure(row: dict[str, Any], image: Image.Image | None) -> str:
    """Return an image with its path, prediction and label, or the reason why it could not be read."""
    lines = [row["path"]]
    if row["error"] is not None:
        lines.append(row["error"])
    else:
        probability = "" if row["probability"] is None else f" {row['probability']:.1%}"
        lines.append(f"{row['prediction']}{probability}")
        if row["correct"] is not None:
            lines.append("correct" if row["correct"] else f"wrong, label {row['label']}")
    caption = "<br>".join(html.escape(line) for line in lines)
    shown = ""
    if image is not None:
        address, width, height = small(image, BYTES)
        shown = f'<img src="{address}" width="{width}" height="{height}" alt="{html.escape(row["path"])}">'
    return f'<figure style="width: auto; overflow-wrap: anywhere">{shown}<figcaption>{caption}</figcaption></figure>'
