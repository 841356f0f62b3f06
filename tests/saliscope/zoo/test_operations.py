"""The preprocessing without torchvision: every value is equal to torchvision's, bit by bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

from saliscope.zoo import Preparation

SIZES = ((500, 333), (333, 999), (60, 101), (7, 5), (224, 224))
"""Width and height; 256 * (999 / 333) is less than 768 as a float."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(width: int, height: int) -> torch.Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", list(InterpolationMode))
@pytest.mark.parametrize(("side", "resize"), [(224, 256), (64, 61), (50, (40, 90)), ((30, 75), 48), ((9, 6), (9, 6))])
def test_values_are_torchvisions(mode: InterpolationMode, side: Any, resize: Any) -> None:
    """Also crops that exceed the resized image, by an odd number of pixels, on one side or both."""
    preparation = Preparation(side, resize, MEAN, STD, mode)  # type: ignore[arg-type]
    assert preparation == Preparation(side, resize, MEAN, STD, mode.value)
    assert f"interpolation={mode!r}," in repr(preparation), "runs over data sets are resumed by this text"
    images: list[Any] = [functional.to_pil_image(noise(*size)) for size in SIZES]
    if mode.value in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        images += [noise(*size) / 255 for size in SIZES]
    for image in images:
        resized = functional.resize(image, [resize] if isinstance(resize, int) else list(resize), mode, antialias=True)
        cropped = functional.center_crop(resized, [side] if isinstance(side, int) else list(side))
        values = functional.to_tensor(cropped) if isinstance(image, Image.Image) else cropped
        expected = functional.normalize(values, list(MEAN), list(STD))
        assert torch.equal(preparation.tensor(image)[0], expected)


def test_region_is_the_crop_of_a_larger_input() -> None:
    """Oracle: where the values are that are not a margin."""
    for side, (width, height) in itertools.product((64, 63, 62, 61), ((45, 45), (45, 90))):
        preparation = Preparation(side, 45, (0.0,) * 3, (1.0,) * 3)
        inside = preparation.tensor(torch.ones(3, height, width))[0, 0] > 0
        left, top, _, _ = preparation.region(width, height)
        assert int(inside.any(0).int().argmax()) == max(0, -left) and int(inside.any(1).int().argmax()) == max(0, -top)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="'cubic' is not a valid InterpolationMode"):
        Preparation(8, 8, MEAN, STD, "cubic")
    with pytest.raises(ValueError, match="contains 0. Pass positive values"):
        Preparation(8, 8, (0.0,), (1e-50,)).tensor(torch.ones(1, 8, 8))
