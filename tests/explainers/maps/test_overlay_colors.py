"""Legibility of overlays: the color difference (CIEDE2000) that a map makes on every example; a lower bound."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from explainers.maps.overlays import overlay, view
from tests.support.color_difference import ciede2000, colorfulness, lab

pytestmark = pytest.mark.sample

EXAMPLES = sorted((Path(__file__).parents[3] / "assets" / "examples").glob("*.jpg"))

# Sharma, Wu, Dalal 2005, table 1: pairs on every branch of the formula.
SHARMA = [
    ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
    ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
    ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
    ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
    ((50.0, 2.5, 0.0), (56.0, -27.0, -3.0), 31.9030),
    ((6.7747, -0.2908, -2.4247), (5.8714, -0.0985, -2.2286), 0.6377),
]


def test_ciede2000_of_the_published_pairs():
    for first, second, expected in SHARMA:
        assert ciede2000(list(first), list(second)) == pytest.approx(expected, abs=1e-4), (first, second)


def load_image(path: Path) -> Image.Image:
    image = Image.open(path).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)


def pixels(drawn: Image.Image) -> Tensor:
    return torch.frombuffer(bytearray(drawn.tobytes()), dtype=torch.uint8).view(drawn.height, drawn.width, 3)


def halves(drawn: Image.Image) -> list[list[float]]:
    """The mean color of the upper and the lower half, as L*a*b*."""
    return [lab(half.double().mean(dim=(0, 1))).tolist() for half in pixels(drawn).chunk(2)]


def coarse(share: float, sign: float = 1) -> Tensor:
    """A 7 x 7 map with `share` of its largest value on the upper half; the largest is one cell if that is less."""
    map = torch.zeros(7, 7)
    map[:3] = share
    if share < 1:
        map[0, 0] = 1
    return sign * map


def fine(share: float, sign: float = 1) -> Tensor:
    """The same at 224 x 224, as attributions of pixels are: one in three has a value, of any size up to the share."""
    spread = torch.rand(224, 224, generator=torch.Generator().manual_seed(0))
    map = share * torch.where(spread < 2 / 3, 0.2, 1.0)
    map[112:] = 0
    if share < 1:
        map[:8, :60] = 1.0
    return sign * map


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
@pytest.mark.parametrize("map", [coarse, fine])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_map_high_on_one_half_changes_the_colors_of_that_half_only(path, map, sign):
    """ΔE against a zero map: at least 20 on that half, 8 at 30% of the maximum, and less than a third on the other."""
    image = load_image(path)
    assert view(map(1.0, sign)).fine is (map is fine)
    for share, least in ((1.0, 20), (0.3, 8)):
        drawn = halves(overlay(image, map(share, sign)))
        muted = halves(overlay(image, 1e-9 * map(share, sign), limits=(0, 1)))
        changed = [ciede2000(a, b) for a, b in zip(muted, drawn, strict=True)]
        assert changed[0] >= least, (share, changed)
        assert share < 1 or changed[1] < changed[0] / 3, changed


@pytest.mark.parametrize("map", [torch.zeros(7, 7), 1e-9 * torch.randn(224, 224)], ids=["coarse", "fine"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_zero_map_leaves_little_color(path, map):
    """The muted image has at most 40% of the original colorfulness, and is still recognizable."""
    image = load_image(path)
    muted = pixels(overlay(image, map, limits=(0, 1)))

    assert colorfulness(muted) <= 0.4 * colorfulness(pixels(image))
    grey = torch.stack([pixels(image).double().mean(-1).flatten(), muted.double().mean(-1).flatten()])
    assert float(torch.corrcoef(grey)[0, 1]) > 0.95
