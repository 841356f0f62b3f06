"""Occlusion: score drop per pixel, against a closed form, a slow loop and captum."""

from __future__ import annotations

import pytest
import torch

from explainers import BadOption, occlusion
from tests.support.nets import Weighted, curved, random_images, residual, settle
from tests.support.oracles import occlusion_by_hand

CLASSES = [2, 0, 5]


@pytest.mark.parametrize(
    ("window", "stride"),
    [((4, 4), (2, 2)), ((4, 4), (3, 3)), ((5, 3), (5, 3)), ((5, 3), (2, 3)), ((12, 16), (12, 16)), ((1, 1), (1, 1))],
)
def test_occlusion_by_a_slow_loop(window, stride):
    net, x = curved(), random_images()
    found = occlusion(net, x, CLASSES, window=window, stride=stride)
    torch.testing.assert_close(found, occlusion_by_hand(net, x, CLASSES, window, stride), rtol=1e-9, atol=1e-12)


@pytest.fixture
def linear():
    return settle(Weighted((3, 12, 16), 6).double())


def test_baselines(linear):
    x, channels = random_images(), torch.tensor([0.1, -0.5, 2.0], dtype=torch.float64).view(3, 1, 1)
    for baseline in (0.7, channels, x.flip(3), "mean"):
        start = x.mean((2, 3), keepdim=True) if baseline == "mean" else baseline
        expected = (linear(x) - linear(torch.zeros_like(x) + start))[range(3), CLASSES].detach()
        found = occlusion(linear, x, CLASSES, window=4, stride=4, baseline=baseline)
        torch.testing.assert_close(found.sum((1, 2)), expected, rtol=1e-9, atol=1e-12)


def test_a_partial_map_contains_the_evaluated_windows(linear):
    """Stopped early: pixels of evaluated windows have their value, the others are zero."""
    x = random_images(1)
    full = occlusion(linear, x, 1, window=4, stride=4)
    found = occlusion(linear, x, 1, window=4, stride=4, batch_size=1, progress=lambda partial: partial.done < 3)
    tried = found != 0
    assert 0 < tried.sum() < tried.numel()
    torch.testing.assert_close(found[tried], full[tried])


def test_defaults_for_small_images_and_impossible_windows():
    found = occlusion(residual(), random_images(1, 3, 12, 12), 1)
    assert found.shape == (1, 12, 12) and found.isfinite().all() and found.any()
    for window in (0, -3, (4, 0), (4, 4, 4), "wide", 2.5):
        with pytest.raises((BadOption, TypeError), match="window"):
            occlusion(curved(), random_images(), 1, window=window, stride=1)


def test_occlusion_agrees_with_captum_after_scaling():
    """captum returns the mean drop of the covering windows: ours times the window area if no window is clipped."""
    captum = pytest.importorskip("captum.attr")
    net, x = residual(), random_images()
    for stride in (4, 2):
        steps = (3, stride, stride)
        theirs = captum.Occlusion(net).attribute(x, (3, 4, 4), strides=steps, target=CLASSES, baselines=0)
        ours = occlusion(net, x, CLASSES, window=4, stride=stride)
        torch.testing.assert_close((ours * 16).float(), theirs[:, 0].float(), rtol=1e-4, atol=1e-5)
