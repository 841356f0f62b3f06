"""Resize, crop and normalize images as torchvision does, without importing it, which takes longer than torch itself.

An image is a PIL image in mode L or RGB, or a float tensor [channels, height, width].
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

ImageOrTensor = TypeVar("ImageOrTensor", Image.Image, Tensor, Image.Image | Tensor)


class InterpolationMode(Enum):
    """The filters of a resizing, with the names and values of torchvision's.

    A run over a data set is resumed if the `repr` of its preprocessing is the same, in which this class has its name.
    """

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def image_size(image: Image.Image | Tensor) -> tuple[int, int]:
    """Return width and height."""
    return image.size if isinstance(image, Image.Image) else (image.shape[2], image.shape[1])


def resize(image: ImageOrTensor, height: int, width: int, interpolation: InterpolationMode | str) -> ImageOrTensor:
    """Return the image with another size, smoothed if it becomes smaller; tensors are not clamped."""
    mode = InterpolationMode(interpolation).value
    if image_size(image) == (width, height):
        return image
    if isinstance(image, Image.Image):
        name = "nearest" if mode == "nearest-exact" else mode
        return image.resize((width, height), Image.Resampling[name.upper()])
    smooth = mode in ("bilinear", "bicubic")
    return functional.interpolate(
        image[None], (height, width), mode=mode, align_corners=False if smooth else None, antialias=smooth
    )[0]


def crop(image: ImageOrTensor, top: int, left: int, height: int, width: int) -> ImageOrTensor:
    """Return a part of the image, with zeros where it exceeds the image."""
    if isinstance(image, Image.Image):
        return image.crop((left, top, left + width, top + height))
    old_width, old_height = image_size(image)
    # Negative margins crop.
    return functional.pad(image, (-left, left + width - old_width, -top, top + height - old_height))


def to_tensor(image: Image.Image) -> Tensor:
    """Return the values of a PIL image in [0, 1], float32 [channels, height, width]."""
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return values.view(image.height, image.width, -1).permute(2, 0, 1).contiguous().float() / 255


def normalize(image: Image.Image | Tensor, mean: Sequence[float], std: Sequence[float], white: float = 1) -> Tensor:
    """Return (x - mean) / std as float32 [channels, height, width]; `white` is the value of white in a PIL image.

    Errors   ValueError if a std is 0 as float32
    """
    if isinstance(image, Image.Image):
        image = to_tensor(image) * white
    center, scale = (
        torch.tensor(part, dtype=torch.float32, device=image.device)[:, None, None] for part in (mean, std)
    )
    if not bool(scale.all()):
        raise ValueError(f"std {tuple(std)} contains 0. Pass positive values")
    return (image - center) / scale
