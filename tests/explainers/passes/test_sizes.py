"""Batches and images of unusual sizes: a skip connection beside a layer, an image smaller than a metric's distance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import explainers
from tests.support.calls import call
from tests.support.deciding_nets import Conv, lights


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
