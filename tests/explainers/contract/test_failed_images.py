"""Batches with images that cannot be explained: the maps of the others are those of a call without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import explainers
from explainers import METHODS, BadImages, BadOption, explain
from tests.support.calls import small
from tests.support.nets import rel

pytestmark = pytest.mark.sample


class Overflowing(nn.Module):
    """Returns infinite scores for bright images. All of its operations have rules for LRP."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1), nn.ReLU())
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head((self.features(x) * 1e4 * 1e4).mean((2, 3)) * 1e-8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return Overflowing().eval()


def batch(kind: str) -> torch.Tensor:
    images = torch.rand(3, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    if kind == "overflow":
        images[1] *= 3e37
    else:
        images[1, 2, 5, 7] = torch.nan if kind == "nan" else torch.inf
    return images


@pytest.mark.parametrize(
    "name", [name for name, each in METHODS.items() if not each.needs or not each.needs(network())]
)
@pytest.mark.parametrize("kind", ["nan", "overflow"])
def test_the_other_images_are_explained(name, kind):
    net, images = network(), batch(kind)
    found = METHODS[name](net, images, [0, 1, 2], **small(name))
    expected = METHODS[name](net, images[[0, 2]], [0, 2], **small(name))
    assert found.shape == (3, *expected.shape[1:]) and rel(found[[0, 2]], expected) < 1e-4
    if kind == "nan" or METHODS[name].reads_class:
        assert found[1].isnan().all()


@pytest.mark.parametrize("name", ["saliency", "grad_cam", "eigen_cam", "rise", "token_pca"])
@pytest.mark.parametrize("target", [None, [0, 1, 2]])
def test_explain_reports_the_image_that_was_left_out(name, target):
    net, images = network(), batch("inf")
    found = explain(name, net, images, target, **small(name))
    alone = explain(name, net, images[[0, 2]], None if target is None else [0, 2], **small(name))

    assert [[each.code for each in row] for row in found.findings[::2]] == [[f.code for f in r] for r in alone.findings]
    (finding,) = found.findings[1]
    assert finding.code == "non_finite" and "Image 1 " in finding.sentence
    assert "inf at channel 2, row 5, column 7" in finding.sentence
    assert rel(found.map[[0, 2]], alone.map) < 1e-5 and found.map[1].isnan().all() and found.raw[1].isnan().all()
    assert found.statistics[0].keys() == alone.statistics[0].keys()
    assert found.statistics[0]["max"] == pytest.approx(alone.statistics[0]["max"], rel=1e-3)
    assert found.statistics[1]["non_finite"] == found.raw[1].numel()
    assert "nan" not in repr(found) and torch.equal(found.images, images)
    if found.target is not None:
        assert found.target == ([alone.target[0], -1, alone.target[1]] if target is None else target)


def test_explain_reports_scores_that_overflow_only_for_their_image():
    found = explain("saliency", network(), batch("overflow"), 1)
    codes = [{each.code for each in row} for row in found.findings]
    assert codes[1] == {"non_finite"} and "non_finite" not in codes[0] | codes[2]


def test_options_and_functions_of_an_image_stay_with_it():
    net, images = network(), batch("nan")
    baseline = torch.rand(3, 3, 12, 16)
    found = explainers.integrated_gradients(net, images, [0, 1, 2], steps=4, baseline=baseline)
    alone = explainers.integrated_gradients(net, images[2:], 2, steps=4, baseline=baseline[2:])
    assert rel(found[2:], alone) < 1e-5
    whole = explain("integrated_gradients", net, images, 1, steps=4, baseline=baseline)
    assert whole.keywords["baseline"] is baseline
    with pytest.raises(explainers.BadTarget, match="Class 7 does not exist"):
        explainers.saliency(net, images, [0, 1, 7])


def test_a_batch_of_which_no_image_can_be_left_out_is_an_error():
    """None is finite, or other inputs have a row for each image."""
    net, images, rows = network(), batch("nan"), torch.rand(3, 3, 1, 1)
    for call in (explainers.saliency, lambda *given, **options: explain("saliency", *given, **options)):
        with pytest.raises(BadImages, match="contains nan at image 0, channel 2, row 5, column 7"):
            call(net, images[1:2].expand(2, -1, -1, -1), 1)
        with pytest.raises(BadImages, match="contains nan at image 1"):
            call(net, images, 1, forward=lambda x: net(x + rows[: len(x)]))


def test_maps_of_images_that_failed_are_drawn_but_not_evaluated():
    net, images = network(), batch("nan")
    found = explain("saliency", net, images, 1)
    assert len(found.overlay(torch.rand(3, 3, 12, 16))) == 3
    with pytest.raises(BadOption, match="leave out the images 1"):
        explainers.evaluate(net, batch("overflow") * 1e-37, found)
