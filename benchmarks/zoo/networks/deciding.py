"""Networks that decide by the image: what one image shows about their layers and rows need not hold for another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import nms

from benchmarks.zoo.networks.custom import Small
from benchmarks.zoo.networks.unusual import PLACED, Changed
from benchmarks.zoo.subject import Network

ROWS = ("positions", "steady", "integrated_gradients", "rise")
"""Checks for networks whose control flow DeepLIFT and LRP may refuse."""


def _crop(x: Tensor) -> Tensor:
    """Crop to the rows and columns that are not black, and resize to the size of the image."""
    bright = (x.abs() > 0.01).flatten(0, 1).any(0)
    rows, columns = bright.any(1).nonzero().flatten().tolist(), bright.any(0).nonzero().flatten().tolist()
    return F.interpolate(x[..., rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], x.shape[2:])


def _if_varied(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Apply a change under a condition that holds for the images of the checks."""
    return lambda x: change(x) if x.std() > 1e-4 else x


def _flip_by_boxes(x: Tensor) -> Tensor:
    """Flip the image if any box remains after non-maximum suppression, as it always does."""
    corners = x[0, 0, :, :2].abs()
    return x.flip(-1) if len(nms(torch.cat([corners, corners + 1], 1), x[0, 1, :, 0], 0.5)) > 0 else x


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "crop": _crop,
    "flip": _if_varied(lambda x: x.flip(-1)),
    "roll": _if_varied(lambda x: x.roll(x.shape[3] // 4, 3)),
    "flip, hidden in a list": lambda x: x.flip(-1) if x.std().tolist() > 1e-4 else x,
    "flip, by non-maximum suppression": _flip_by_boxes,
    "scale": lambda x: x / 255 if x.max() > 20 else x,
    "noise": lambda x: x + 0.2 * torch.randn_like(x) if x.mean() > -5 else x,
}


class EarlyExit(Small):
    """Returns after two blocks if the image is easy."""

    def __init__(self) -> None:
        super().__init__()
        self.exit = nn.Linear(24, self.head.out_features)

    def forward(self, images: Tensor) -> Tensor:
        features = self.one(self.stem(images))
        if images.std() > 20:
            return self.exit(features.mean((2, 3)))
        return self.head(self.three(self.two(features)).mean((2, 3)))


class Experts(Small):
    """A mixture of experts: each runs on its own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(48, 48, 3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.three(self.two(self.one(self.stem(images))))
        out = torch.zeros_like(features)
        for rows in (
            (images.mean((1, 2, 3)) > -5).nonzero().flatten(),
            (images.mean((1, 2, 3)) <= -5).nonzero().flatten(),
        ):
            if len(rows):
                out = out.index_copy(0, rows, self.other(features[rows]))
        return self.head(out.mean((2, 3)))


class Sorted(Small):
    """Sorts the images of a batch, and their scores back."""

    def forward(self, images: Tensor) -> Tensor:
        order = images.mean((1, 2, 3)).argsort()
        return super().forward(images[order])[order.argsort()]


def deciding() -> Iterator[Network]:
    """Return the networks that decide by the image."""
    for name, change in CHANGES.items():
        checks = ROWS if name != "noise" else ("steady",)
        yield Network(f"decides by the image: {name}", lambda size, change=change: Changed(change), checks=checks)  # type: ignore[misc]
    yield Network("decides by the image: early exit", lambda size: EarlyExit(), checks=PLACED)
    yield Network(
        "decides by the image: experts", lambda size: Experts(), checks=("steady", "integrated_gradients", "rise")
    )
    yield Network("decides by the image: sorted rows", lambda size: Sorted(), checks=PLACED)
