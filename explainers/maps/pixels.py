"""Conversion of images to pixel values: from Pillow images, and from tensors and arrays of a known layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from explainers.errors import BadImages, WrongType, kind_of

if TYPE_CHECKING:
    from PIL import Image


def pixels(photo: Image.Image | Tensor | Any) -> Tensor:
    """Convert an image to uint8 pixels `[H, W, 3]`, or `[H, W, 4]` with an alpha channel. The result is a copy.

    A tensor or array has shape `[3, H, W]`, `[H, W, 3]` or `[H, W]`, and holds uint8 values or floats from 0 to 1.

    Errors   WrongType if `photo` is not an image or has more than 8 bits per channel; BadImages for another shape or
             for values outside the range
    """
    if isinstance(photo, Tensor) or (hasattr(photo, "__array__") and not hasattr(photo, "convert")):
        # Copied, because arrays of Pillow images are read-only, and torch warns about those.
        return _from_values(photo.detach().cpu() if isinstance(photo, Tensor) else torch.tensor(photo))
    if not all(hasattr(photo, name) for name in ("mode", "convert", "tobytes")):
        raise WrongType(
            f"photo is {kind_of(photo)}. Give a Pillow image, such as PIL.Image.open(path), or its pixels as a "
            "uint8 tensor [3, H, W]."
        )
    if photo.mode.startswith(("I", "F")):
        raise WrongType(f"The image has mode {photo.mode!r}, more than 8 bits per channel. Scale it to 0..255 first.")
    has_alpha = photo.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in photo.info
    photo = photo.convert("RGBA" if has_alpha else "RGB")
    values = torch.frombuffer(bytearray(photo.tobytes()), dtype=torch.uint8)
    return values.view(photo.height, photo.width, -1)


def one_for_each(photos: Any, count: int) -> list[Any]:
    """Return images as a list: a single image, a sequence, or a batch [N, 3, H, W].

    Errors   BadImages if there is not one image for each of the `count` maps
    """
    several = list(photos) if isinstance(photos, Sequence) or getattr(photos, "ndim", 0) == 4 else [photos]
    if len(several) != count:
        raise BadImages(f"{len(several)} images were given for {count} maps. Give one image for each map, in order.")
    return several


def _from_values(values: Tensor) -> Tensor:
    shape = tuple(values.shape)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or not values.numel() or not {1, 3}.intersection((values.shape[0], values.shape[2])):
        batch = " For a batch, give photos[0]." if values.ndim == 4 else ""
        raise BadImages(f"photo has shape {shape}. Give one image: [3, H, W], [H, W, 3] or [H, W].{batch}")
    planes = values if values.shape[0] in (1, 3) else values.permute(2, 0, 1)
    if planes.is_floating_point():
        low, high = float(planes.min()), float(planes.max())
        if not (low >= 0 and high <= 1):  # NaN fails too
            raise BadImages(
                f"photo has values from {low:.3g} to {high:.3g}; it looks normalized for a model. Give the original "
                "image, or undo the normalization to get values from 0 to 1: images * std + mean."
            )
        planes = (planes * 255).round().to(torch.uint8)
    elif planes.dtype != torch.uint8:
        raise WrongType(f"photo has dtype {planes.dtype}. Give uint8 from 0 to 255, or floats from 0 to 1.")
    return planes.expand(3, -1, -1).permute(1, 2, 0).contiguous().clone()


def to_pillow(values: Tensor) -> Image.Image:
    """Convert uint8 pixels to a Pillow image, the inverse of `pixels`, through a shared buffer, without numpy."""
    from PIL import Image  # optional: the library requires only torch

    height, width, channels = values.shape
    buffer = bytearray(values.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(values.reshape(-1))
    return Image.frombytes("RGBA" if channels == 4 else "RGB", (width, height), bytes(buffer))
