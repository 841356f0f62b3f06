"""`show_channels`: the channels of a layer as small maps in a notebook."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from explainers.display.display import NO_PILLOW, Display
from explainers.display.encoding import has_pillow, image_address
from explainers.errors import BadOption, kind_of, shorten
from explainers.maps.color_maps import color_map
from explainers.maps.pixels import to_pillow

if TYPE_CHECKING:
    from PIL import Image


def show_channels(
    features: Tensor, channels: Sequence[int] | None = None, *, most: int = 64, colors: str = "magma"
) -> Display:
    """Show the channels of a layer for one image as small maps, each in its own range, in a notebook.

    `features` are the layer's output [K, h, w], or [1, K, h, w], such as a value of `capture` or the result of
    `feature_maps`. `channels` are the numbers of those to show, by default the first `most`.

    Returns  a `Display`, which a notebook shows if it is the last value of a cell
    Errors   ImportError without Pillow; BadOption for another shape; BadOption for an unknown channel or color map

    Example
        >>> show_channels(feature_maps(model, images[:1], layer="layer3"), [3, 17])
        Display(2 of 256 channels)
    """
    if not has_pillow():
        raise ImportError(NO_PILLOW)
    planes = features[0] if isinstance(features, Tensor) and features.ndim == 4 and len(features) == 1 else features
    if not isinstance(planes, Tensor) or planes.ndim != 3 or not planes.numel():
        given = tuple(features.shape) if isinstance(features, Tensor) else kind_of(features)
        raise BadOption(f"show_channels takes the channels [K, h, w] of one image, not {given}. Give features[0].")
    numbers = list(range(min(most, len(planes)))) if channels is None else list(channels)
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number < len(planes):
            raise BadOption(f"Unknown channel {shorten(number)}. Give integers from 0 to {len(planes) - 1}.")
    color_map(colors)
    drawn = [(number, *_draw_channel(planes[number], colors)) for number in numbers]
    parts = [
        f'<figure><img src="{image_address(image)}" alt="Channel {number}">'
        f"<figcaption>{number}: {low:.3g} to {high:.3g}</figcaption></figure>"
        for number, image, low, high in drawn
    ]
    count = f"{len(numbers):,} of {len(planes):,} channel{'s' * (len(planes) != 1)}"
    content = f'<p>{count}</p><div class="saliscope-channels">{"".join(parts)}</div>'
    return Display(content, f"Display({count})", [each[1] for each in drawn])


def _draw_channel(plane: Tensor, colors: str) -> tuple[Image.Image, float, float]:
    """Draw a channel in its own range; values that are not finite are gray."""
    from PIL import Image  # optional: the library requires only torch

    values = plane.detach().to("cpu", torch.float32)
    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (math.nan, math.nan)
    share = (values - low) / (high - low) if high > low else torch.zeros_like(values)
    drawn = color_map(colors)[(share.nan_to_num(0, 0, 0).clamp(0, 1) * 255).round().long()]
    drawn = torch.where(values.isfinite()[..., None], drawn, torch.tensor(128, dtype=torch.uint8))
    image = to_pillow(drawn.to(torch.uint8))
    factor = max(1, 96 // max(image.size))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST), low, high
