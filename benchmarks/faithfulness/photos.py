"""Images of folders, as the network's input, with the predicted class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from saliscope.zoo import Model

SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, eq=False)
class Photo:
    """One image: its name, the network's input [1, C, H, W] and the predicted class."""

    name: str
    image: Tensor
    target: int


def paths(folder: Path, limit: int | None = None) -> list[Path]:
    """Return the images of a folder and its subfolders, sorted by path; with a limit, evenly spaced ones."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if limit and limit < len(found):
        found = [found[index * len(found) // limit] for index in range(limit)]
    return found


def photographs(model: Model, files: Iterable[Path]) -> Iterator[Photo]:
    """Yield the images, each read when it is needed."""
    for path in files:
        with Image.open(path) as file:
            image = prepare(model, file.convert("RGB"))
        with torch.no_grad():
            target = int(model.network(image).argmax())
        yield Photo(path.stem, image, target)


def prepare(model: Model, image: Image.Image) -> Tensor:
    """Return the image as input; an image smaller than the input is enlarged to it and not cropped."""
    if min(image.size) >= model.side:
        return model.prepare(image)
    return replace(model.preparation, resize=model.side).tensor(image)
