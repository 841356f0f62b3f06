"""Images that consist of known parts, and a small network that was trained to recognize the parts."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PARTS, SLOT = 10, 12
"""Number of parts, and side of the slots of an image, at most one part in each."""


def parts() -> Tensor:
    """The parts [PARTS, 3, 8, 8]: random blocks of color."""
    generator = torch.Generator().manual_seed(3)
    return F.interpolate(torch.rand(PARTS, 3, 4, 4, generator=generator), scale_factor=2) * 2 - 1


@cache
def planted_images(
    count: int, seed: int, *, always: int | None = None, never: int | None = None, grid: int = 4, shown: int = 4
) -> tuple[Tensor, Tensor]:
    """Images [N, 3, side, side] of `shown` random parts, and where each part is, [N, PARTS, grid, grid].

    The part `always` is in all images, `never` in none.
    """
    generator = torch.Generator().manual_seed(seed)
    images = 0.2 * torch.randn(count, 3, SLOT * grid, SLOT * grid, generator=generator)
    where, shapes = torch.zeros(count, PARTS, grid, grid), parts()
    for n in range(count):
        chosen = [part for part in torch.randperm(PARTS, generator=generator).tolist() if part not in (always, never)]
        chosen = ([] if always is None else [always]) + chosen
        slots = torch.randperm(grid**2, generator=generator)[:shown].tolist()
        for slot, part in zip(slots, chosen, strict=False):
            row, column = divmod(slot, grid)
            top, left = torch.randint(SLOT - 8 + 1, (2,), generator=generator).tolist()
            top, left = row * SLOT + top, column * SLOT + left
            images[n, :, top : top + 8, left : left + 8] += shapes[part]
            where[n, part, row, column] = 1
    return images, where


@cache
def planted_network() -> nn.Sequential:
    """A network with one score for each part, trained to say whether the image has it.

    The cells of its layer "features" are the slots.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential()
        for name, module in {
            "conv1": nn.Conv2d(3, 24, 5, padding=2, stride=2), "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(24, 48, 3, padding=1), "relu2": nn.ReLU(), "pool2": nn.MaxPool2d(6),
            "conv3": nn.Conv2d(48, 32, 1), "features": nn.ReLU(), "pool3": nn.AdaptiveMaxPool2d(1),
            "flat": nn.Flatten(), "head": nn.Linear(32, PARTS),
        }.items():  # fmt: skip
            net.add_module(name, module)
    images, where = planted_images(1500, 1, grid=2, shown=3)
    labels = where.amax((2, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for rows in torch.randperm(len(images), generator=generator).split(50):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(images[rows]), labels[rows]).backward()
            optimizer.step()
    return net.eval().requires_grad_(False)


def matches(found: Tensor, planted: Tensor) -> Tensor:
    """The correlation of each planted map [N, PARTS, h, w] with the found map [N, k, h, w] that is most like it."""
    a, b = (each.double().movedim(1, 0).flatten(1) for each in (planted, found))
    a, b = (each - each.mean(1, keepdim=True) for each in (a, b))
    a, b = (each / each.norm(dim=1, keepdim=True).clamp(min=1e-12) for each in (a, b))
    return (a @ b.T).amax(1)
