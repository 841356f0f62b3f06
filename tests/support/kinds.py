"""The catalog of unusual networks: a network, what is special about it, and what must hold for all methods.

`tests/explainers/call/test_kinds.py` explains each of them by a method of each family. Other tests only need the
kinds that their methods treat differently.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support import deciding_nets as nets
from tests.support.deciding_nets import Conv, lights

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Kind:
    """Each image of a batch must have the map of a new network that sees only this image."""

    make: Callable[[], nn.Module]
    images: Tensor
    code: str | None = None
    """The code of the finding that every explanation of the network has."""
    plain: Callable[[], nn.Module] | None = None
    """The same function in ordinary code; its maps are the expected ones."""


class Applied(Conv):
    """Applies a function to the images, or between the convolutions."""

    def __init__(self, function: Change, inside: bool = False) -> None:
        super().__init__()
        self.function, self.inside = [function], inside

    def before(self, x: Tensor) -> Tensor:
        return x if self.inside else self.function[0](x)

    def between(self, x: Tensor) -> Tensor:
        return self.function[0](x) if self.inside else x


class Checkpointed(Conv):
    """Runs its convolutions in a checkpointed segment."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = checkpoint(super().forward, x, use_reentrant=self.reentrant)
        return scores


class InnerGradient(Conv):
    """Takes a gradient inside its forward pass."""

    def before(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.first(leaf).sum(), leaf)
        return x * gradient.sign()


class Ends(Conv):
    """Ends with a function of the network and its maps."""

    def __init__(self, end: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.end = [end]

    def forward(self, x: Tensor) -> Tensor:
        return self.end[0](self, self.relu(self.second(self.first(x).relu())))


class Temperature(Conv):
    """Layers in float32 and a temperature in float64 or float32, which determines the type of the scores."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([2.0], dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.temperature


class Observed(nn.Module):
    """A network that divides by a running mean of its input, which it updates in every pass."""

    def __init__(self, update: str = "in place") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.update = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5), update
        self.register_buffer("size", torch.ones(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long), persistent=False)
        self.register_buffer("seen", None)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        new = 0.9 * self.size + 0.1 * x.detach().abs().mean()
        if self.update == "in place":
            self.size.copy_(new)
            self.count += 1
        elif self.update == "replaced":
            self.size, self.seen = new, x.detach().clone()
        elif self.update == "resized":
            self.size.resize_(1).fill_(float(new))
        scores: Tensor = self.head((self.conv(x) / self.size).relu().mean((2, 3)))
        return scores


def quantized() -> nn.Module:
    """A network whose observers update their ranges in every pass."""
    quantization = pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    net: Any = nn.Sequential(quantization.QuantStub(), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    net.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    net = quantization.prepare_qat(net.train())
    net(torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)))
    return net.eval()


def normalize_in_place(x: Tensor) -> Tensor:
    return x.sub_(0.3).mul_(1.7)


def normalize(x: Tensor) -> Tensor:
    return (x - 0.3) * 1.7


def unequal(count: int = 3) -> Tensor:
    """Images of different scales."""
    sizes = torch.tensor([1.0, 4.0, 0.2])[:count].view(-1, 1, 1, 1)
    return torch.randn(count, 3, 12, 16, generator=torch.Generator().manual_seed(5)) * sizes + 0.3


LOUD_AND_FAINT = torch.tensor([3.0, 0.05]).view(2, 1, 1, 1)
BYTES_AND_FRACTIONS = torch.tensor([50.0, 0.1]).view(2, 1, 1, 1)

DECIDING = {
    "crop": (nets.AutoCrop, nets.scans()),
    "flip": (lambda: Applied(lambda x: x.flip(3) if x.mean() > 0 else x), lights()),
    # Values that are read without a tensor operation
    "hidden in a list": (lambda: Applied(lambda x: x.flip(3) if x.mean((1, 2, 3)).tolist()[0] > 0 else x), lights()),
    "hidden in an array": (
        lambda: Applied(lambda x: x.flip(3) if x.detach().numpy().mean() > 0 else x),
        lights(),
    ),
    "early exit": (nets.EarlyExit, lights() * LOUD_AND_FAINT),
    "experts": (nets.Experts, lights()),
    "scale": (nets.Scaled, lights() * BYTES_AND_FRACTIONS),
    "noise if dark": (lambda: Applied(lambda x: x + 0.1 * torch.randn_like(x) if x.mean() < 0 else x), lights()),
}
"""The control flow depends on the image, so that what one image shows about the network need not hold for another."""
REORDERING = {
    "sorted": (lambda: nets.Reordered(lambda x: x.mean((1, 2, 3)).argsort()), lights()),
    "flipped": (nets.FlippedRows, lights()),
    # For two images the order does not change.
    "even before odd": (lambda: nets.Reordered(lambda x: (torch.arange(len(x)) % 2).argsort(stable=True)), lights(3)),
    "pairs": (lambda: nets.Split(2), lights(3)),
    "another path for many": (lambda: Applied(lambda x: 0.5 * x if len(x) > 2 else x), lights(3)),
    "one after another": (lambda: nets.Split(1), lights()),
}
"""Layers run on other rows than the images are in."""
MIXING: dict[str, Change] = {
    "maximum": lambda x: x / x.abs().max(),
    "mean": lambda x: x - 0.5 * x.mean(0),
    "earlier rows": lambda x: x.cumsum(0),
    "number of rows": lambda x: x * len(x),
}
"""The rows of a batch depend on each other."""
NOISE: dict[str, Change] = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "python": lambda x: x * random.choice([0.5, 1.0, 2.0]),
    "numpy": lambda x: x + float(numpy.random.rand()),
    "rare": lambda x: 0.5 * x if float(torch.rand(())) < 0.02 else x,
}
"""The network draws random numbers."""
WRITING: dict[str, Callable[[], nn.Module]] = {
    "in place": Observed,
    "replaced": partial(Observed, "replaced"),
    "resized": partial(Observed, "resized"),
    "inside": lambda: nn.Sequential(nn.Identity(), Observed()).eval(),
    "quantization-aware training": quantized,
}
"""The forward pass writes to buffers, which all later passes would read."""
SAME: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "modified input": (partial(Applied, normalize_in_place), partial(Applied, normalize)),
    "squeezed scores": (lambda: Ends(lambda net, maps: net.head(maps.mean((2, 3))).squeeze()), Conv),
    "scores in float64": (partial(Temperature, torch.float64), partial(Temperature, torch.float32)),
    "checkpoints": (partial(Checkpointed, False), Conv),
    "reentrant checkpoints": (partial(Checkpointed, True), Conv),
}
"""The same function as ordinary code."""

KINDS: dict[str, Kind] = {
    **{name: Kind(make, images, "decides_by_image") for name, (make, images) in DECIDING.items()},
    **{name: Kind(make, images, "rows_depend") for name, (make, images) in REORDERING.items()},
    **{name: Kind(partial(Applied, mix), unequal(2), "rows_depend") for name, mix in MIXING.items()},
    "mean of features": Kind(partial(Applied, MIXING["mean"], True), unequal(), "rows_depend"),
    **{name: Kind(partial(Applied, noise), unequal(2), "stochastic") for name, noise in NOISE.items()},
    **{f"buffer {name}": Kind(make, 3 * lights(size=16), "buffers_written") for name, make in WRITING.items()},
    **{name: Kind(make, lights(), plain=plain) for name, (make, plain) in SAME.items()},
    "inner gradient": Kind(InnerGradient, lights()),
    "quantile": Kind(partial(Ends, lambda net, maps: net.head(maps.flatten(2).quantile(0.9, dim=2))), lights()),
    "modified input, row by row": Kind(
        partial(Applied, lambda x: MIXING["mean"](normalize_in_place(x))), unequal(), "rows_depend",
        partial(Applied, lambda x: MIXING["mean"](normalize(x))),
    ),
}  # fmt: skip
