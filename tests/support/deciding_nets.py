"""Networks whose control flow depends on the image, or that reorder the images of a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Conv(nn.Module):
    """Two convolutions and a linear head; `before` and `between` may move, select or change the images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.relu = nn.Conv2d(3, 6, 4, 4), nn.Conv2d(6, 8, 3, 1, 1), nn.ReLU()
        self.head = nn.Linear(8, 5)
        self.eval()

    def before(self, x: Tensor) -> Tensor:
        return x

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.first(self.before(x)).relu())
        return self.head(self.relu(self.second(x)).mean((2, 3)))


class AutoCrop(Conv):
    """Crops the black border of a scan, and resizes what remains to 32 pixels."""

    def before(self, x: Tensor) -> Tensor:
        rows, columns = ((x != 0).any(0).any(0).any(1 - k).nonzero().flatten() for k in (0, 1))
        if not len(rows):
            return F.interpolate(x, (32, 32))
        return F.interpolate(x[:, :, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], (32, 32))


class EarlyExit(Conv):
    """Returns after the first convolution if the image is easy."""

    def __init__(self) -> None:
        super().__init__()
        self.exit = nn.Linear(6, 5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        early = self.first(x).relu()
        if early.mean() > 0.3:
            return self.exit(early.mean((2, 3)))
        return self.head(self.relu(self.second(early)).mean((2, 3)))


class Experts(nn.Module):
    """A mixture of experts: each runs on its own rows, and `index_copy` puts their outputs back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.relu = nn.Conv2d(3, 6, 4, 4), nn.ReLU()
        self.experts = nn.ModuleList(nn.Conv2d(6, 6, 3, 1, 1) for _ in range(2))
        self.head = nn.Linear(6, 5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x.mean((1, 2, 3)) > 0).long()
        x = self.stem(x).relu()
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                out = out.index_copy(0, rows, expert(x[rows]))
        return self.head(self.relu(out).mean((2, 3)))


class Scaled(Conv):
    """Takes bytes and fractions."""

    def before(self, x: Tensor) -> Tensor:
        if x.max() > 1:
            x = x / 255
        return x


class Reordered(Conv):
    """Puts the images in the order of a function between the convolutions, and their outputs back."""

    def __init__(self, order: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.order = [order]

    def forward(self, x: Tensor) -> Tensor:
        order = self.order[0](x)
        return super().forward(x[order])[order.argsort()]


class FlippedRows(Conv):
    """Flips the batch, and its scores back."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(0)).flip(0)


class Split(Conv):
    """Runs this number of images at a time."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super(Split, self).forward(images) for images in x.split(self.size)])


def scans(size: int = 64) -> Tensor:
    """Two scans with a black border: the content is in the first and in the last quarter, 24 pixels wide, with a bright
    spot 6 pixels from its corner.
    """
    images = torch.zeros(2, 3, size, size)
    generator = torch.Generator().manual_seed(1)
    for image, start in zip(images, (0, size // 2), strict=True):
        image[:, start : start + 32, start : start + 32] = 0.05 + 0.05 * torch.rand(3, 32, 32, generator=generator)
        image[:, start + 4 : start + 8, start + 4 : start + 8] = 3.0
    return images


def lights(count: int = 2, size: int = 32) -> Tensor:
    """Images of which the first is bright and the second dark."""
    noise = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(5))
    return noise + torch.tensor([0.6, -0.6, 1.5])[:count].view(-1, 1, 1, 1)
