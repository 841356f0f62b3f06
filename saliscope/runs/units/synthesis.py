"""Synthetic images of units: what each channel of a layer responds to, made by optimization and without any photo."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from explainers import feature_visualization, unit

if TYPE_CHECKING:
    from saliscope.zoo import Model

BATCH = 16
"""Units that are optimized together."""
STEPS = 48
QUALITY = 60


def add_images(
    model: Model, layer: str, channels: int, side: int, done: Tensor | None, keep: Callable[[Tensor], object]
) -> Tensor:
    """Return an image of each channel of a layer, [K, C, side, side] in 0 to 255.

    Args     done: images of the first channels, from a stopped call
             keep: called after each batch with the images so far; an exception in it stops the work
    """
    mean, std = model.preparation.mean, model.preparation.std
    images = torch.zeros(0, model.channels, side, side, dtype=torch.uint8) if done is None else done
    while len(images) < channels:
        batch = range(len(images), min(channels, len(images) + BATCH))
        target = unit(layer, list(batch))
        found = feature_visualization(
            model.network, target, mean=mean, std=std, size=(side, side), images=len(batch), steps=STEPS
        )
        images = torch.cat([images, (255 * found.images.cpu()).round().to(torch.uint8)])
        keep(images)
    return images


def to_webp(images: Tensor, dead: Sequence[bool]) -> list[bytes | None]:
    """Return images [K, C, H, W] as WebP files, None for dead channels, whose images mean nothing."""
    files: list[bytes | None] = []
    for image, is_dead in zip(images, dead, strict=True):
        if is_dead:
            files.append(None)
            continue
        buffer = io.BytesIO()
        Image.fromarray(image.movedim(0, 2).squeeze(2).numpy()).save(buffer, "WEBP", quality=QUALITY, method=6)
        files.append(buffer.getvalue())
    return files
