"""Refusals name the cause that is true: transforms of torch.func, sizes that change, parts that no hook sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import explainers
from explainers import ExplainerError, NoSpatialOutput, UnsupportedModel, capture, full_gradients
from tests.support.deciding_nets import Conv, lights

IMAGES = lights(2)


class Between(Conv):
    """Runs a function of the inner convolution between the others."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.function = nn.Conv2d(6, 6, 3, 1, 1), function
        self.eval()

    def between(self, x: Tensor) -> Tensor:
        return self.function(self.inner, x)


class WhollyMapped(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda image: super(WhollyMapped, self).forward(image[None])[0])(x)


def mapped() -> nn.Module:
    return Between(lambda inner, x: torch.vmap(lambda image: inner(image[None])[0])(x))


def own_gradient() -> nn.Module:
    return Between(lambda inner, x: x + torch.func.grad(lambda y: inner(y).pow(2).sum())(x))


@pytest.mark.parametrize("make", [mapped, WhollyMapped, own_gradient])
def test_a_layer_inside_a_transform_is_refused_for_that_reason(make: Callable[[], nn.Module]) -> None:
    net = make()
    layer = "first" if make is WhollyMapped else "inner"
    calls: list[Callable[[], Any]] = [
        lambda: explainers.grad_cam(net, IMAGES, 1, layer=layer),
        lambda: explainers.feature_maps(net, IMAGES, layer=layer),
        lambda: explainers.list_layers(net, IMAGES)[0 if make is WhollyMapped else 1].receptive_field((1, 1)),
        lambda: full_gradients(net, IMAGES, 1),
    ]
    for call in calls:
        with pytest.raises((NoSpatialOutput, UnsupportedModel), match="a transform of torch.func"):
            call()
    for gradients in (False, True):
        with pytest.raises(UnsupportedModel, match=f"'{layer}' runs inside a transform"):
            with capture(net, layer, gradients=gradients):
                net(IMAGES)
    if make is WhollyMapped:
        with pytest.raises(NoSpatialOutput, match="No layer.*a transform of torch.func"):
            explainers.grad_cam(net, IMAGES, 1)
    if make is not own_gradient:
        with pytest.raises(ExplainerError, match=r"uses a transform of torch.func \(such as vmap\), for which LRP"):
            explainers.lrp(net, IMAGES, 1)


class LargeIfMany(Conv):
    """Enlarges batches of more than four images."""

    def before(self, x: Tensor) -> Tensor:
        return F.interpolate(x, (48, 48)) if len(x) > 4 else x


def test_a_grid_that_depends_on_the_number_of_images() -> None:
    with pytest.raises(ExplainerError, match=r"had a grid of \(8, 8\) in another pass. Its size depends.*number"):
        explainers.grad_cam(LargeIfMany(), IMAGES.repeat(3, 1, 1, 1), 1)


def test_a_layer_that_no_hook_sees() -> None:
    with pytest.raises(ExplainerError, match="'inner' did not run.*or the network calls its forward method directly"):
        explainers.grad_cam(Between(lambda inner, x: inner.forward(x)), IMAGES, 1, layer="inner")
