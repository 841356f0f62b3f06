"""`explain(..., compile=True)`: the maps of the network itself, from one compilation per network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers.errors import BadOption


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 4)).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))


class Backend:
    """What stands for `torch.compile`: it counts the networks and the shapes of batches, and multiplies the output."""

    def __init__(self, factor: float = 1.0) -> None:
        self.networks, self.shapes, self.factor = 0, list[tuple[int, ...]](), factor

    def __call__(self, network: nn.Module, **options: Any) -> Any:
        self.networks += 1

        def run(batch: Tensor) -> Tensor:
            self.shapes.append(tuple(batch.shape))
            return self.factor * network(batch)

        return run


@pytest.mark.parametrize(
    ("name", "options"),
    [("rise", {"samples": 50, "batch_size": 32}), ("occlusion", {"batch_size": 32}), ("score_cam", {"layer": "2"})],
)
def test_a_compiled_copy_gives_the_same_map_with_one_compilation(
    network: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    """Smaller batches are padded, so that torch does not compile again."""
    backend = Backend()
    monkeypatch.setattr(torch, "compile", backend)
    expected = explainers.explain(name, network, images, **options)
    assert backend.networks == 0
    for _ in range(2):
        found = explainers.explain(name, network, images, compile=True, **options)
        torch.testing.assert_close(found.map, expected.map, rtol=1e-4, atol=1e-6)
    assert backend.networks == 1 and len(set(backend.shapes)) == 1


def test_a_compiled_copy_with_other_scores_is_refused(
    network: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", Backend(1.1))
    with pytest.raises(BadOption, match="differ from those of the network by more than rounding. Omit compile=True"):
        explainers.explain("rise", network, images, compile=True, samples=20)


def test_where_it_has_no_effect_it_is_refused(network: nn.Module, images: Tensor) -> None:
    with pytest.raises(BadOption, match="grad_cam scores no variants of the image, so compile=True has no effect"):
        explainers.explain("grad_cam", network, images, compile=True)
    with pytest.raises(BadOption, match="needs a network in float32 with a 2-d convolution"):
        explainers.explain("rise", network.double(), images.double(), compile=True, samples=20)


@pytest.mark.slow
def test_the_compiler_of_torch(network: nn.Module, images: Tensor) -> None:
    expected = explainers.explain("rise", network, images, samples=50)
    try:
        found = explainers.explain("rise", network, images, compile=True, samples=50)
    except BadOption as error:
        assert "torch cannot compile the network" in str(error)
        pytest.skip("no C++ compiler")
    torch.testing.assert_close(found.map, expected.map, rtol=1e-4, atol=1e-6)
    assert not any(module._compiled_call_impl for module in network.modules()), "the user's modules are not compiled"
