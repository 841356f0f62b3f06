"""Sampling, perturbation and cost, where other libraries are wrong or slow."""

from __future__ import annotations

import pytest
import torch

from explainers import ablation_cam, channel_effects, explain, grad_cam, integrated_gradients, occlusion, smooth_grad
from tests.support.nets import Scaled, Weighted, check_once, curved, random_images, residual, settle


def test_p97_more_samples_start_with_the_same_draws():
    """Draws are ordered per image: 8 samples are the mean of the first 4 and the next 4."""
    net, x = curved(), random_images(1)
    seen = []

    def watch(partial):
        seen.append(partial.done)
        return partial.done < 4

    four = smooth_grad(net, x, 1, samples=4)
    stopped = smooth_grad(net, x, 1, samples=8, batch_size=4, progress=watch)
    torch.testing.assert_close(stopped, four, rtol=1e-10, atol=1e-14)
    assert seen == [4]


def test_p98_noise_is_relative_to_the_range_of_the_image():
    """The same image in other units (and a model that converts them back) gives the same map in those units."""
    x = random_images(2)
    first = smooth_grad(Scaled(1.0).eval(), x, 1, samples=5)
    for scale in (255.0, 0.01):
        found = smooth_grad(Scaled(scale).eval(), x * scale, 1, samples=5)
        torch.testing.assert_close(found * scale, first, rtol=1e-8, atol=1e-12)


def test_p100_integrated_gradients_are_complete_at_the_default_and_nearly_so_with_relus():
    x = random_images()
    for net, options, bound in ((curved(), {}, 1e-8), (residual(), {"steps": 500}, 0.02)):
        expected = (net(x) - net(torch.zeros_like(x)))[:, 1].detach()
        found = integrated_gradients(net, x, 1, **options).sum((1, 2, 3))
        assert (found - expected).abs().max() < bound * expected.abs().max()


def test_p101_values_for_a_pixel_sum_to_the_difference_on_a_linear_model():
    """The row's own setting: 10 x 10, windows 4 and 3 that do not fit evenly, so the last ones are clipped."""
    net, x = settle(Weighted((1, 10, 10), 3).double()), random_images(1, 1, 10, 10)
    expected = float((net(x) - net(x * 0 + 0.25))[0, 1])
    for window in (4, 3, 5):
        found = occlusion(net, x, 1, window=window, stride=window, baseline=0.25)
        assert float(found.sum()) == pytest.approx(expected, rel=1e-10), window


def batch_sizes(module, work):
    """Batch sizes of the forward passes through `module` while `work` ran."""
    seen = []
    handle = module.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    work()
    handle.remove()
    return seen


def test_p106_grad_cam_and_its_explanation_are_one_forward_which_builds_no_graph_before_the_layer():
    net, x = residual(), random_images()
    grad_cam(net, x, layer="layer2")
    assert batch_sizes(net.conv1, lambda: grad_cam(net, x, layer="layer2")) == [3]
    assert batch_sizes(net.conv1, lambda: explain("grad_cam", net, x)) == [3], "none for the runner-up's map either"
    modes = []
    handle = net.layer1.register_forward_hook(lambda m, i, o: modes.append(o.requires_grad))
    grad_cam(net, x, layer="layer2")
    handle.remove()
    assert modes == [False], "idea 1: the graph starts at the layer"


@pytest.mark.parametrize("method", [ablation_cam, channel_effects], ids=lambda m: m.__name__)
def test_p107_stages_before_the_ablated_layer_do_not_see_the_copies(method):
    """Idea 4: the prefix runs with one image per chunk, only the rest with a copy for each channel."""
    net, x = residual(), random_images(1)
    check_once(net, x)
    before = batch_sizes(net.layer1, lambda: method(net, x, 1, layer="layer2"))
    after = batch_sizes(net.fuse, lambda: method(net, x, 1, layer="layer2"))
    assert max(before) == 1 and len(before) <= 3
    assert sum(after) >= 6
