"""Networks that are written in unusual ways: geometry, rows, randomness, pooling."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.networks.custom import Change, Small
from benchmarks.zoo.subject import CLASSES, Network

PLACED = ("positions", "steady", "integrated_gradients", "deep_lift", "lrp", "rise")
"""The checks whose oracles do not compute a map at the layer's own cells."""
FEW = ("layout", "positions", "steady")


def _crop(x: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    return x[..., height // 4 : height // 4 + height // 2, : 3 * width // 4]


def _letterbox(x: Tensor) -> Tensor:
    """Resize to 75% of the height and half of the width, with a border at the left and below."""
    height, width = x.shape[-2:]
    small = F.interpolate(x, (3 * height // 4, width // 2), mode="bilinear")
    return F.pad(small, (width // 2, 0, 0, height // 4))


def _to_multiple(x: Tensor) -> Tensor:
    """Copy the image into zeros whose sides are multiples of 96, as a detector does with 32."""
    canvas = x.new_zeros(*x.shape[:2], *(-(-side // 96) * 96 for side in x.shape[-2:]))
    canvas[:, :, : x.shape[2], : x.shape[3]] = x
    return canvas


def _zoom(x: Tensor) -> Tensor:
    theta = torch.tensor([[0.7, 0.0, 0.2], [0.0, 0.6, -0.1]]).to(x).expand(len(x), 2, 3)
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


GEOMETRY: dict[str, Change] = {
    "crop": _crop,
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll((x.shape[2] // 3, x.shape[3] // 4), (2, 3)),
    "padding": lambda x: F.pad(x, (x.shape[3] // 5, x.shape[3] // 5, x.shape[2] // 5, x.shape[2] // 5)),
    "letterbox": _letterbox,
    "padding to a multiple": _to_multiple,
    "zoom": _zoom,
    "sorted rows": lambda x: x.sort(2).values,
}


class PooledTokens(nn.Module):
    """A transformer whose tokens are pooled by an attention with its own query, as in SigLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 16, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.query = nn.Parameter(torch.randn(1, 1, 16))
        self.pool = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.blocks(self.patch(images).flatten(2).mT)
        return self.head(self.pool(self.query.expand(len(tokens), -1, -1), tokens, tokens)[0][:, 0])


def rebound(network: nn.Module) -> nn.Module:
    """Replace the `forward` of every layer by a partial function, as accelerate's hooks do."""
    for module in network.modules():
        if not list(module.children()):
            own = cast(Any, module)
            own._old_forward = module.forward
            own.forward = functools.partial(lambda layer, x: layer._old_forward(x), module)
    return network


def unusual() -> Iterator[Network]:
    """Return the unusual networks."""
    for name, change in GEOMETRY.items():
        yield Network(f"unusual {name}", lambda size, change=change: Small(change), checks=PLACED)  # type: ignore[misc]
    yield Network("unusual mixed rows", lambda size: Small(lambda x: x / x.abs().max()), checks=FEW)
    yield Network("unusual batch mean", lambda size: Small(lambda x: x - x.mean(0) / 2), checks=FEW)
    noise = functools.partial(F.dropout, p=0.3, training=True)
    yield Network("unusual random numbers", lambda size: Small(between=noise), checks=("steady",))
    yield Network("unusual replaced forward", lambda size: Small(), finish=rebound)
    yield Network("unusual attention pooling", lambda size: PooledTokens(), checks=(*FEW, "default_layer", "grad_cam"))
