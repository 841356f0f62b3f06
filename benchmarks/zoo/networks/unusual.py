"""Networks that change the geometry of their images."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.zoo.networks.custom import Change, Small
from benchmarks.zoo.subject import Network

PLACED = ("positions", "steady", "integrated_gradients", "deep_lift", "lrp", "rise")
"""The checks whose oracles do not compute a map at the layer's own cells."""


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


def unusual() -> Iterator[Network]:
    """Return the unusual networks."""
    for name, change in GEOMETRY.items():
        yield Network(f"unusual {name}", lambda size, change=change: Small(change), checks=PLACED)  # type: ignore[misc]
