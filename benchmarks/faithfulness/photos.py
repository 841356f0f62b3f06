"""The photographs: those of folders, as the network's input, with the class that it predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from models import Model

PICTURES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, eq=False)
class Photo:
    """One photograph: its name, the network's input [1, C, H, W] and the predicted class."""

    name: str
    image: Tensor
    target: int


def paths(folder: Path, limit: int | None = None) -> list[Path]:
    """The photographs of a folder and its subfolders in order of their paths; with a limit, evenly spaced ones."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    if limit and limit < len(found):
        found = [found[index * len(found) // limit] for index in range(limit)]
    return found


def photographs(model: Model, files: Iterable[Path]) -> Iterator[Photo]:
    """The photographs, read as they are asked for."""
    for path in files:
        with Image.open(path) as picture:
            image = prepared(model, picture.convert("RGB"))
        with torch.no_grad():
            target = int(model.network(image).argmax())
        yield Photo(path.stem, image, target)


def prepared(model: Model, picture: Image.Image) -> Tensor:
    """The picture as input; one that is smaller than the network's input is enlarged to it, and not cropped."""
    if min(picture.size) >= model.side:
        return model.prepare(picture)
    return replace(model.preparation, resize=model.side).tensor(picture)
