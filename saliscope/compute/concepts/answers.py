"""The data classes of concepts: what is wanted, and the answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image

import explainers
from saliscope.compute.answers import Settings


@dataclass(frozen=True)
class Wanted:
    """The number of concepts, and the paths of the images of a batch; without them, the examples are used."""

    k: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cut:
    """The part of an image around the cell where a concept is strongest, and the name of the image."""

    name: str
    image: Image.Image


@dataclass(frozen=True)
class Found:
    """The concepts of a layer, their maps [k, h, w] on the image of the page, and the strongest cuts of each."""

    concepts: explainers.Concepts
    maps: torch.Tensor
    cuts: list[list[Cut]]


@dataclass(frozen=True)
class Measured:
    """The concepts, and by how much the score of the subject falls if one is removed, [k]."""

    settings: Settings
    crop: Image.Image
    found: Found
    effects: torch.Tensor
    subject: str
