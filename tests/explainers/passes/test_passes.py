"""Passes of a call: partial maps, progress, and modes of the caller."""

from __future__ import annotations

import torch

from explainers import explain, grad_cam, score_cam
from tests.support.nets import random_images, residual


def test_partial_maps_are_rectified_as_the_last_one_is():
    net, images, seen = residual(), random_images(), []
    report = {"batch_size": 2, "progress": lambda partial: seen.append(partial.map)}

    final = score_cam(net, images, 1, layer="layer2", **report)
    raw = score_cam(net, images, 1, layer="layer2", relu=False, **report)

    whole, signed = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert torch.equal(whole[-1], final) and torch.equal(signed[-1], raw) and torch.equal(raw.relu(), final)
    assert all(bool((map >= 0).all()) for map in whole)


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
    assert inside and all(torch.equal(map, expected) for map in inside)
