"""Networks whose output or layers follow the number of rows of a batch in an unusual way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import METHODS
from tests.support.calls import small
from tests.support.deciding_nets import Conv
from tests.support.kinds import Temperature


class Skip(nn.Module):
    """A network with a concatenating skip connection and an optional second image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, stride=2)
        self.up, self.last = nn.Upsample(scale_factor=2), nn.Conv2d(8, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        features = self.first(x).relu()
        skip = features if other is None else self.first(other).relu()
        both = torch.cat([skip, self.up(self.down(features).relu())], 1)
        scores: Tensor = self.head(self.last(both).relu().mean((2, 3)))
        return scores


@pytest.mark.parametrize("name", ["ablation_cam", "layer_integrated_gradients"])
def test_a_function_runs_layers_beside_a_skip_connection(name: str) -> None:
    torch.manual_seed(0)
    network, images = Skip().eval(), torch.randn(2, 3, 12, 12)
    other = torch.randn(1, 3, 12, 12)

    def compute(**options: Any) -> Tensor:
        found: Tensor = METHODS[name](network, images, 1, layer="down", **small(name), **options)
        return found

    assert torch.equal(compute(), compute(forward=lambda batch: network(batch)))
    with_other = compute(forward=lambda batch: network(batch, other.expand(len(batch), -1, -1, -1)))
    assert with_other.shape == compute().shape and with_other.isfinite().all()


def test_images_have_the_dtype_of_a_part_of_the_network() -> None:
    network, images = Temperature(torch.float64), torch.randn(1, 3, 12, 12)

    with pytest.raises(explainers.BadImages, match=r"torch\.float16.*torch\.float64"):
        explainers.grad_cam(network, images.half(), 1)


def test_a_pointing_game_on_a_small_image_has_no_value() -> None:
    network, images = Conv(), torch.randn(1, 3, 8, 8)
    box = torch.tensor([[2, 2, 4, 4]])

    found = explainers.evaluate(network, images, "grad_cam", metrics=["pointing_game"], region=box)
    near = explainers.evaluate(
        network, images, "grad_cam", metrics=["pointing_game"], region=box, options={"pointing_game": {"tolerance": 1}}
    )

    assert found.values["pointing_game"].isnan().all() and "15 pixels" in found.reasons["pointing_game"][0]
    assert near.values["pointing_game"].isfinite().all()
