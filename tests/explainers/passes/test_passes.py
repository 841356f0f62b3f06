"""Passes of a call: batch sizes that a network needs, progress, and modes of the caller."""

from __future__ import annotations

import pytest
import torch

from explainers import BadTarget, LayerNotFound, explain, grad_cam, score_cam
from explainers.passes.at_layer import retry_with_repeated_batch
from tests.support.nets import random_images, residual


def out_of_memory() -> torch.Tensor:
    """The CPU allocator's error for a petabyte."""
    return torch.empty(2**50, dtype=torch.uint8).fill_(1)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), None, LayerNotFound("no such layer")])
def test_rows_are_not_repeated_after_out_of_memory_or_our_errors(error):
    """The repeated batch would need even more memory, and our own errors would only occur a second time."""
    tried = []

    def one_row():
        if error is None:
            return out_of_memory()
        raise error

    with pytest.raises(RuntimeError if error is None else type(error)):
        retry_with_repeated_batch(one_row, lambda: tried.append(1))
    assert tried == []


@pytest.mark.parametrize("error", [RuntimeError("shape"), ValueError("rows"), IndexError("5"), BadTarget("4 for 1")])
def test_rows_are_repeated_if_the_network_needs_its_batch_size(error):
    def one_row():
        raise error

    assert retry_with_repeated_batch(one_row, lambda: 7) == 7


def test_partial_maps_are_rectified_as_the_last_one_is():
    net, images, seen = residual(), random_images(), []
    report = {"batch_size": 2, "progress": lambda partial: seen.append(partial.map)}

    final = score_cam(net, images, 1, layer="layer2", **report)
    raw = score_cam(net, images, 1, layer="layer2", relu=False, **report)

    whole, signed = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    torch.testing.assert_close(whole[-1], final, rtol=0, atol=0)
    torch.testing.assert_close(signed[-1], raw, rtol=0, atol=0)
    assert all(bool((map >= 0).all()) for map in whole) and raw.relu().equal(final)


def test_progress_runs_outside_of_the_call():
    """User code there, with the same model in another mode, is a separate call and leaves no findings."""
    net, images = residual(), random_images()
    expected, inside = grad_cam(net, images, 2, layer="layer1"), []

    def report(partial):
        net.train()
        inside.append(grad_cam(net, images, 2, layer="layer1"))
        net.eval()

    e = explain("score_cam", net, images, 1, layer="layer2", progress=report)

    assert e.layer == "layer2" and e.target == [1] * len(images)
    for map in inside:
        torch.testing.assert_close(map, expected, rtol=0, atol=0)


def test_a_network_may_have_an_attribute_named_like_a_hook_table():
    """As in timm's backbones, where `feature_hooks` may be None."""
    net, images = residual(), random_images()
    expected = grad_cam(net, images, 1)
    net.feature_hooks, net.layer1.my_hooks = None, []

    torch.testing.assert_close(grad_cam(net.train(), images, 1), expected)
    assert net.training
