"""Legibility of overlays: the color difference that a map makes on every example; a lower bound."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from explainers.maps.overlays import overlay, view
from tests.support.color_difference import lab

pytestmark = pytest.mark.sample

EXAMPLES = sorted((Path(__file__).parents[3] / "assets" / "examples").glob("*.jpg"))


def load_image(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)


def pixels(drawn: Image.Image) -> Tensor:
    return torch.frombuffer(bytearray(drawn.tobytes()), dtype=torch.uint8).view(drawn.height, drawn.width, 3)


def halves(drawn: Image.Image) -> Tensor:
    """The mean color of the upper and the lower half, as L*a*b*."""
    return torch.stack([lab(half.double().mean(dim=(0, 1))) for half in pixels(drawn).chunk(2)])


def coarse(share: float) -> Tensor:
    """A 7 x 7 map with `share` of its largest value on the upper half; the largest is one cell if that is less."""
    map = torch.zeros(7, 7)
    map[:3] = share
    map[0, 0] = 1
    return map


def fine(share: float) -> Tensor:
    """The same at 224 x 224, as attributions of pixels are: one in three has a value, of any size up to the share."""
    spread = torch.rand(224, 224, generator=torch.Generator().manual_seed(0))
    map = share * torch.where(spread < 2 / 3, 0.2, 1.0)
    map[112:], map[:8, :60] = 0, 1.0
    return map


@pytest.mark.parametrize("map", [coarse, fine])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_map_high_on_one_half_changes_the_colors_of_that_half_only(path, map):
    """CIE76 against a zero map: at least 20 on that half, 8 at 30% of the maximum, and little on the other; muted
    images are still recognizable."""
    image = load_image(path)
    assert view(map(1.0)).fine is (map is fine)
    for sign in (1, -1):
        for share, least in ((1.0, 20), (0.3, 8)):
            muted = overlay(image, 1e-9 * sign * map(share), limits=(0, 1))
            changed = (halves(muted) - halves(overlay(image, sign * map(share)))).norm(dim=1).tolist()
            assert changed[0] >= least, (share, changed)
            assert share < 1 or changed[1] < changed[0] / 3, changed
    grey = torch.stack([pixels(each).double().mean(-1).flatten() for each in (image, muted)])
    assert float(torch.corrcoef(grey)[0, 1]) > 0.95
