"""Networks that modify their input in place, besides the maps that `test_kinds.py` compares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from explainers import METHODS, ExplainerError, Through
from tests.support.calls import small
from tests.support.deciding_nets import Conv, lights
from tests.support.kinds import Applied, normalize, normalize_in_place


class Bypassed(Conv):
    """The features are multiplied by a channel of the image: a path around all layers."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        x = normalize_in_place(x) if self.in_place else normalize(x)
        scores: Tensor = self.head((self.second(self.first(x).relu()) * x[:, :1, ::4, ::4]).mean((2, 3)))
        return scores


@pytest.mark.parametrize("name", ["layer_integrated_gradients", "layer_conductance", "internal_influence"])
def test_paths_at_a_layer_that_the_image_bypasses(name: str) -> None:
    """Each point of the path runs the network on the same image."""
    found, expected = (
        METHODS[name](Bypassed(in_place), lights(), 1, layer="second", steps=8, batch_size=2)
        for in_place in (True, False)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.sample
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.gradients])
def test_explanations_through_channels_do_not_depend_on_it(name: str) -> None:
    found = []
    for change in (normalize_in_place, normalize):
        try:
            found.append(METHODS[name](Applied(change), lights(), Through([1, 3], "second", [1, 2, 3]), **small(name)))
        except ExplainerError as error:
            found.append(str(error))
    assert found[0] == found[1] if isinstance(found[1], str) else torch.allclose(*found, rtol=1e-4, atol=1e-6)
