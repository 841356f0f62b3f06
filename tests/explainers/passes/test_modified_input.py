"""Networks that modify their input in place: all methods give the maps of the same network that does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import explainers
from explainers import METHODS

SMALL = {"samples": 8, "steps": 8}


class Network(nn.Module):
    """A small network that normalizes its input, in place or not; without `statistics` it runs row by row."""

    def __init__(self, in_place: bool, statistics: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place = in_place
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8, track_running_stats=statistics),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(12, 16, 3, 1, 1),
            nn.ReLU(),
        )
        self.fc = nn.Linear(16, 5)
        self.eval()

    def normalize(self, x: Tensor) -> Tensor:
        return x.sub_(0.3).mul_(1.7) if self.in_place else (x - 0.3) * 1.7

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.features(self.normalize(x)).mean((2, 3)))
        return scores


class Bypassed(Network):
    """The same network, whose features are multiplied by a channel of the image: a path around all its layers."""

    def __init__(self, in_place: bool) -> None:
        super().__init__(in_place, True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalize(x)
        scores: Tensor = self.fc((self.features(x) * x[:, :1, ::4, ::4]).mean((2, 3)))
        return scores


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def compare(name: str, statistics: bool, target: Any = None) -> None:
    """Compare the explanations of both networks: maps, and codes of the findings."""
    options = {option: value for option, value in SMALL.items() if option in METHODS[name].options}

    def outcome(in_place: bool) -> Any:
        given = images()
        try:
            found = explainers.explain(name, Network(in_place, statistics), given, target, **options)
        except explainers.ExplainerError as error:
            found = type(error)
        assert torch.equal(given, images()), "the images of the caller"
        return found

    expected, found = outcome(False), outcome(True)
    if not isinstance(expected, explainers.Explanation):
        assert found is expected
        return
    torch.testing.assert_close(found.raw, expected.raw, rtol=1e-4, atol=1e-5 * float(expected.raw.abs().max()))
    codes = [[[finding.code for finding in each] for each in one.findings] for one in (found, expected)]
    assert codes[0] == codes[1]


@pytest.mark.parametrize("statistics", [True, False], ids=["whole batches", "row by row"])
@pytest.mark.parametrize("name", METHODS)
def test_explanations_do_not_depend_on_whether_the_network_modifies_its_input(name: str, statistics: bool) -> None:
    compare(name, statistics)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.gradients])
def test_explanations_through_channels_do_not_depend_on_it(name: str) -> None:
    compare(name, True, explainers.Through([1, 3], "features.3", [1, 2, 3]))


@pytest.mark.parametrize("name", ["layer_integrated_gradients", "layer_conductance", "internal_influence"])
def test_paths_at_a_layer_that_the_image_bypasses(name: str) -> None:
    """Each point of the path runs the network on the same image."""
    in_place, expected = Bypassed(True), Bypassed(False)
    found, correct = (
        METHODS[name](each, images(), 1, layer="features", steps=8, batch_size=2) for each in (in_place, expected)
    )
    torch.testing.assert_close(found, correct)


def test_grad_cam_copies_the_images_once() -> None:
    """A second copy would raise the peak of memory, which is near that of a forward pass."""
    copies = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.clone.default and args[0].shape == images().shape:
                copies.append(function)
            return function(*args, **(kwargs or {}))

    network, given = Network(True, True), images()
    explainers.grad_cam(network, given)
    with Count():
        explainers.grad_cam(network, given)
    assert len(copies) == 1
