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
    [
        ((4, 4), (4, 4)),
        ((4, 4), (2, 2)),
        ((4, 4), (3, 3)),
        ((5, 3), (5, 3)),
        ((5, 3), (2, 3)),
        ((12, 16), (12, 16)),
        ((1, 1), (1, 1)),
        ((7, 16), (7, 16)),
    ],
)
def test_occlusion_by_a_slow_loop(window, stride):
    net, x = curved(), random_images()
    expected = occlusion_by_hand(net, x, CLASSES, window, stride)
    torch.testing.assert_close(
        occlusion(net, x, CLASSES, window=window, stride=stride), expected, rtol=1e-9, atol=1e-12
    )


def test_an_integer_window_is_square():
    net, x = curved(), random_images()
    assert torch.equal(occlusion(net, x, 1, window=4, stride=2), occlusion(net, x, 1, window=(4, 4), stride=(2, 2)))


@pytest.mark.parametrize("window", [(4, 4), (5, 5), (5, 3), (12, 16)])
def test_values_sum_to_the_difference_on_a_linear_model(window):
    """Also with windows clipped at the border: values are per pixel."""
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    expected = (net(x) - net(torch.zeros_like(x)))[range(3), CLASSES].detach()
    found = occlusion(net, x, CLASSES, window=window, stride=window)
    torch.testing.assert_close(found.sum((1, 2)), expected, rtol=1e-11, atol=1e-13)


def test_single_pixel_windows_give_the_terms_of_a_linear_model():
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    expected = (net.fc.weight[CLASSES].view_as(x) * x).sum(1).detach()
    torch.testing.assert_close(occlusion(net, x, CLASSES, window=1, stride=1), expected, rtol=1e-9, atol=1e-13)


def test_baselines():
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    for baseline in (
        0.7,
        torch.tensor([0.1, -0.5, 2.0], dtype=torch.float64).view(3, 1, 1),
        random_images(seed=5),
        "mean",
    ):
        start = (
            x.mean((2, 3), keepdim=True) if baseline == "mean" else baseline if not isinstance(baseline, str) else None
        )
        expected = (net(x) - net(torch.zeros_like(x) + start))[range(3), CLASSES].detach()
        found = occlusion(net, x, CLASSES, window=4, stride=4, baseline=baseline)
        torch.testing.assert_close(found.sum((1, 2)), expected, rtol=1e-9, atol=1e-12)


def test_an_image_equal_to_its_baseline_has_a_zero_map():
    net = curved()
    x = torch.full((1, 3, 12, 16), 0.4, dtype=torch.float64)
    assert occlusion(net, x, 1, window=4, stride=4, baseline=0.4).abs().max() < 1e-12


@pytest.mark.parametrize(("window", "stride"), [(2, 3), ((4, 2), (4, 3))])
def test_stride_beyond_the_window_is_refused(window, stride):
    with pytest.raises(BadOption, match="stride"):
        occlusion(curved(), random_images(), 1, window=window, stride=stride)


@pytest.mark.parametrize("window", [0, -3, (4, 0), (4, 4, 4), "wide", 2.5])
def test_impossible_windows_are_refused(window):
    with pytest.raises((BadOption, TypeError), match="window"):
        occlusion(curved(), random_images(), 1, window=window, stride=1)


def test_windows_larger_than_the_image_occlude_all_of_it():
    net, x = curved(), random_images()
    try:
        found = occlusion(net, x, CLASSES, window=100, stride=100)
    except BadOption:
        return
    lost = (net(x) - net(torch.zeros_like(x)))[range(3), CLASSES].detach()
    torch.testing.assert_close(found, (lost / (12 * 16))[:, None, None].expand(3, 12, 16))


def test_defaults_for_small_and_large_images():
    for size in (12, 64):
        found = occlusion(residual(), random_images(1, 3, size, size), 1)
        assert found.shape == (1, size, size) and found.isfinite().all() and found.any()


def test_partial_map_contains_the_evaluated_windows():
    """Stopped early: pixels of evaluated windows have their value, the others are zero."""
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images(1)
    full = occlusion(net, x, 1, window=4, stride=4)
    found = occlusion(net, x, 1, window=4, stride=4, batch_size=1, progress=lambda partial: partial.done < 3)
    tried = found != 0
    assert 0 < tried.sum() < tried.numel()
    torch.testing.assert_close(found[tried], full[tried])


@pytest.mark.parametrize("stride", [4, 2])
def test_occlusion_agrees_with_captum_after_scaling(stride):
    """captum returns the mean drop of the covering windows: ours times the window area if no window is clipped."""
    captum = pytest.importorskip("captum.attr")
    net, x = residual(), random_images()
    theirs = captum.Occlusion(net).attribute(x, (3, 4, 4), strides=(3, stride, stride), target=CLASSES, baselines=0)[
        :, 0
    ]
    ours = occlusion(net, x, CLASSES, window=4, stride=stride)
    torch.testing.assert_close((ours * 16).float(), theirs.float(), rtol=1e-4, atol=1e-5)
