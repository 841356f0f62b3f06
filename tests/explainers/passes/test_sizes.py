"""Networks whose output or layers follow the number of rows of a batch in an unusual way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import METHODS
from tests.support.calls import small


class Scores(nn.Module):
    """A convolution and its mean, [N, 10]; with `squeeze`, [10] for a single image."""

    def __init__(self, squeeze: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.squeeze = nn.Conv2d(3, 10, 3), squeeze

    def forward(self, x: Tensor) -> Tensor:
        scores = self.conv(x).relu().mean((2, 3), keepdim=True)
        return scores.squeeze() if self.squeeze else scores.flatten(1)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.applies(Scores(False))])
def test_squeezed_scores_give_the_same_maps(name: str, count: int) -> None:
    images = torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(0))

    def compute(squeeze: bool) -> Any:
        try:
            return METHODS[name](Scores(squeeze).eval(), images, 1, **small(name))
        except explainers.ExplainerError as error:
            return str(error)

    plain, squeezed = compute(False), compute(True)

    assert plain == squeezed if isinstance(plain, str) else torch.allclose(plain, squeezed, atol=1e-6)


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


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["ablation_cam", "channel_effects", "layer_integrated_gradients", "score_cam"])
def test_a_function_runs_layers_beside_a_skip_connection(name: str, count: int) -> None:
    torch.manual_seed(0)
    network, images = Skip().eval(), torch.randn(count, 3, 12, 12)
    other = torch.randn(1, 3, 12, 12)

    def compute(**options: Any) -> Tensor:
        found: Tensor = METHODS[name](network, images, 1, layer="down", **small(name), **options)
        return found

    assert torch.equal(compute(), compute(forward=lambda batch: network(batch)))
    with_other = compute(forward=lambda batch: network(batch, other.expand(len(batch), -1, -1, -1)))
    assert with_other.shape == compute().shape and with_other.isfinite().all()


class Temperature(nn.Module):
    """Layers in float32 and a temperature in float64, so that the scores are in float64."""

    def __init__(self, exact: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        temperature = torch.tensor([2.0], dtype=torch.float64 if exact else torch.float32)
        self.temperature = nn.Parameter(temperature)
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.conv(x).relu().mean((2, 3))) / self.temperature
        return scores


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.applies(Temperature(False))])
def test_scores_in_float64_of_layers_in_float32_give_the_same_map(name: str) -> None:
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))

    def compute(exact: bool) -> Any:
        try:
            return METHODS[name](Temperature(exact).eval(), images, 1, **small(name))
        except explainers.ExplainerError as error:
            return str(error)

    plain, exact = compute(False), compute(True)

    assert plain == exact if isinstance(plain, str) else torch.allclose(plain, exact.float(), atol=1e-5)


def test_images_have_the_dtype_of_a_part_of_the_network() -> None:
    network, images = Temperature(True).eval(), torch.randn(1, 3, 12, 12)

    with pytest.raises(explainers.BadImages, match=r"torch\.float16.*torch\.float64"):
        explainers.grad_cam(network, images.half(), 1)


def test_a_pointing_game_on_a_small_image_has_no_value() -> None:
    network, images = Scores(False).eval(), torch.randn(1, 3, 8, 8)
    box = torch.tensor([[2, 2, 4, 4]])

    found = explainers.evaluate(network, images, "grad_cam", metrics=["pointing_game"], region=box)
    near = explainers.evaluate(
        network, images, "grad_cam", metrics=["pointing_game"], region=box, options={"pointing_game": {"tolerance": 1}}
    )

    assert found.values["pointing_game"].isnan().all() and "15 pixels" in found.reasons["pointing_game"][0]
    assert near.values["pointing_game"].isfinite().all()
