"""What an oracle is: where the expected values come from, on which network, and how close the results must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.nets import random_images

CLASSES = [2, 0, 5]
Expected = Callable[[nn.Module, Tensor, list[int]], Tensor]


def each_image(of_one: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Expected values of a batch [N, C, H, W] and its classes from those of one image [C, H, W] and its class."""

    def expected(net: nn.Module, x: Tensor, classes: list[int], *args: Any, **options: Any) -> Tensor:
        return torch.stack([of_one(net, image, c, *args, **options) for image, c in zip(x, classes, strict=True)])

    return expected


@dataclass(frozen=True)
class Oracle:
    """`truth` says where the expected values come from; `bites` that the case can tell right from wrong."""

    truth: str
    net: Callable[[], nn.Module]
    expected: Expected
    images: Callable[[], Tensor] = random_images
    classes: list[int] = field(default_factory=lambda: list(CLASSES))
    layer: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    rtol: float = 1e-9
    atol: float = 1e-11

    def bites(self, expected: Tensor) -> bool:
        """Neither blank nor constant maps are right."""
        each = expected.flatten(1)
        return bool(expected.any() and (each.std(1) >= 0.02 * each.abs().mean(1)).all())
