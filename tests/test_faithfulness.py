"""Deletion and insertion: areas by hand, the optimal map of a linear model, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode

import explainers
from benchmarks.faithfulness import CONTROLS, area, chosen, curves, measure, photographs, ranks, table
from explainers.options import Range
from explainers.registry import METHODS, method
from models import Model, Preparation

WEIGHTS = torch.randn(1, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IMAGE, BASELINE = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear(batch: Tensor) -> Tensor:
    return (batch * WEIGHTS).sum((1, 2, 3))


def gain(heat: Tensor) -> float:
    low, high = area(curves(linear, IMAGE, BASELINE, heat)).tolist()
    return high - low


def test_areas_by_hand():
    """Pixels of 4, 3, 2, 1, sum 10: deletion leaves 6, 3, 1, 0, insertion restores 4, 7, 9, 10."""
    image = torch.tensor([[[1.0, 3.0], [4.0, 2.0]]])
    found = curves(lambda batch: batch.sum((1, 2, 3)), image, torch.zeros(1, 2, 2), image[0], steps=4)
    assert found.tolist() == [[10, 6, 3, 1, 0], [0, 4, 7, 9, 10]]
    assert area(found).tolist() == pytest.approx([(10 / 2 + 6 + 3 + 1) / 4, (4 + 7 + 9 + 10 / 2) / 4])
    lowest_first = curves(lambda batch: batch.sum((1, 2, 3)), image, torch.zeros(1, 2, 2), -image[0], steps=4)
    assert lowest_first.tolist() == [[10, 9, 7, 4, 0], [0, 1, 3, 6, 10]]


def test_contributions_of_a_linear_model_are_the_optimal_order():
    """Closed form: after k pixels, no order inserts more than the k largest of w (x - baseline)."""
    contributions = (WEIGHTS * (IMAGE - BASELINE))[0]
    best = gain(contributions)
    generator = torch.Generator().manual_seed(2)
    others = [gain(torch.rand(12, 12, generator=generator)) for _ in range(100)]
    assert best > max(others) and gain(-contributions) < min(others)
    ordered = contributions.flatten().sort(descending=True).values
    cumulative = torch.cat([torch.zeros(1, dtype=torch.float64), ordered.cumsum(0)])[::12]
    # Both curves leave their start by the cumulative sum: the gain is twice its area minus the total difference.
    assert best == pytest.approx(float(2 * torch.trapezoid(cumulative, dx=1 / 12) - cumulative[-1]), rel=1e-12)


def test_ties_are_ranked_in_random_order():
    places = ranks(torch.zeros(40, 40)).double()
    assert torch.equal(places.flatten().sort().values, torch.arange(1600).double())
    assert abs(float(places[:20].mean() - places[20:].mean())) < 60 and torch.equal(places, ranks(torch.zeros(40, 40)))
    heat = torch.zeros(40, 40)
    heat[30, 7] = 1.0
    assert ranks(heat)[30, 7] == 0


class Red(nn.Module):
    """Two classes: the amount of saturated red in the left half, and zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        red = 40 * (self.norm(x)[:, 0, :, :12] - 0.3).relu().mean((1, 2)) - 2
        return torch.stack([red, torch.zeros_like(red)], 1)


@pytest.fixture
def model() -> Model:
    preparation = Preparation(24, 24, (0.5,) * 3, (0.5,) * 3, InterpolationMode.BILINEAR)
    return Model("red", Red().eval().requires_grad_(False), ["red", "not"], preparation)


@pytest.fixture
def folder(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    for place, shade in [(tmp_path / "a.png", 250), (inner / "b.JPG", 200), (inner / "c.jpeg", 230)]:
        picture = Image.new("RGB", (30, 24), (10, 20, 30))
        picture.paste((shade, 90, 10), (5, 6, 13, 18))
        picture.save(place, "PNG" if place.suffix == ".png" else "JPEG")
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def test_photographs_are_found_recursively(model, folder):
    assert [each.name for each in photographs(model, folder)] == ["a", "b", "c"]
    few = photographs(model, folder, 2)
    assert [each.name for each in few] == ["a", "b"] and few[0].baseline.shape == few[0].image.shape == (1, 3, 24, 24)
    assert few[0].target in (0, 1)


def test_a_faithful_map_beats_the_controls(model, folder):
    photos = photographs(model, folder)
    results = [measure(model, each, photos) for each in chosen(["integrated_gradients"])]
    assert [len(each.areas) for each in results] == [3] * 4
    controls, own = results[:3], results[3]
    assert float(own.gains().mean()) > max(float(each.gains().mean()) for each in controls)
    lines = table(results)[1:]
    assert lines[0].startswith("| Integrated gradients (`integrated_gradients`) |")
    assert sum(line.startswith("| **") for line in lines) == 3


def test_a_method_without_a_map_has_a_row_with_the_reason(model, folder):
    photos = photographs(model, folder, 1)
    refused = measure(model, METHODS["attention_rollout"], photos)
    assert not refused.areas and "attention" in refused.reason
    channels = measure(model, METHODS["channel_effects"], photos)
    assert channels.reason == "one value per channel, not a map"
    found = table([*(measure(model, METHODS[name], photos) for name in CONTROLS), refused])
    assert found[-1] == f"| Attention rollout (`attention_rollout`) | {refused.reason} | | | | | |"


def test_signed_maps_are_also_ranked_by_magnitude(model, folder):
    photos = photographs(model, folder, 1)
    signed, unsigned = (measure(model, METHODS[name], photos) for name in ("input_x_gradient", "saliency"))
    assert unsigned.by_magnitude == unsigned.areas
    lines = table([measure(model, METHODS[name], photos) for name in CONTROLS] + [signed, unsigned])
    cells = {line.split("`")[1]: line.split("|")[3].strip() for line in lines[1:]}
    assert cells["saliency"] == "" and (signed.by_magnitude == signed.areas) == (cells["input_x_gradient"] == "")


@pytest.fixture
def cautious() -> Iterator[explainers.Method]:
    @method(family="gradient", returns="heat", title="Toy", paper="none", caution="No better than chance. Take lrp.")
    def toy(model, images, target=None, *, much: Annotated[int, Range(0, 3)] = 1):
        """Toy: nothing."""
        return images.sum(1)

    yield METHODS["toy"]
    del METHODS["toy"]


def test_a_caution_is_one_short_line_that_names_an_alternative(cautious):
    assert cautious.caution == "No better than chance. Take lrp."
    weak = {"saliency", "input_x_gradient", "deconvnet", "integrated_gradients", "blur_integrated_gradients"}
    assert weak <= {each.name for each in METHODS.values() if each.caution}
    for each in METHODS.values():
        assert each.caution == each.caution.strip() and len(each.caution) <= 240 and "\n" not in each.caution
        assert not each.caution or each.caution.endswith(".")
        assert each.name not in CONTROLS or not each.caution
