"""Passes of a call: partial maps, progress, layers parallel to a skip connection."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import explainers
from explainers import explain, grad_cam, score_cam
from tests.support.calls import call
from tests.support.deciding_nets import Conv, lights
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


class Skip(Conv):
    """A network with a concatenating skip connection and an optional second image."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        features = self.first(x).relu()
        skip = features if other is None else self.first(other).relu()
        return self.head(torch.cat([skip, self.second(features).relu()], 1)[:, 2:10].mean((2, 3)))


@pytest.mark.parametrize("name", ["ablation_cam", "layer_integrated_gradients"])
def test_a_function_runs_layers_beside_a_skip_connection(name: str) -> None:
    net, images, other = Skip(), lights(), lights(3)[2:]

    def compute(**options: object) -> Tensor:
        return call(name, net, images, 1, layer="second", **options)

    assert torch.equal(compute(), compute(forward=lambda batch: net(batch)))
    with_other = compute(forward=lambda batch: net(batch, other.expand(len(batch), -1, -1, -1)))
    assert with_other.isfinite().all() and with_other.shape == compute().shape


def test_a_pointing_game_on_a_small_image_has_no_value() -> None:
    def points(**options: object) -> explainers.Evaluation:
        box = torch.tensor([[2, 2, 4, 4]])
        return explainers.evaluate(
            Conv(), torch.randn(1, 3, 8, 8), "grad_cam", metrics=["pointing_game"], region=box, options=options
        )

    found = points()
    assert found.values["pointing_game"].isnan().all() and "15 pixels" in found.reasons["pointing_game"][0]
    assert points(pointing_game={"tolerance": 1}).values["pointing_game"].isfinite().all()
