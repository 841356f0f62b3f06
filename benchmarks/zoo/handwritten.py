"""Handwritten networks: several inputs, checkpoints, repeated blocks, permutations, and changes of the geometry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo.subject import CLASSES, Network

Change = Callable[[Tensor], Tensor]


def block(inputs: int, outputs: int, stride: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())


class Small(nn.Module):
    """Four blocks, a pool and a linear layer; `change` is applied to the images first."""

    def __init__(self, change: Change = lambda x: x) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.three = block(3, 16, 4), block(16, 24), block(24, 32), block(32, 48, 1)
        self.head = nn.Linear(48, CLASSES)
        self.change = change

    def features(self, images: Tensor) -> Tensor:
        return self.three(self.two(self.one(self.stem(self.change(images)))))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


class TwoInputs(Small):
    """An image and a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.about = nn.Linear(4, 48)

    def forward(self, images: Tensor, numbers: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)) * (1 + self.about(numbers).tanh()))


class DictInput(Small):
    """A dict of tensors, as from a data loader."""

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"logits": super().forward(batch["pixel_values"] * batch["mask"])}


class Checkpointed(Small):
    """Blocks that are recomputed in the backward pass, or stored if `use_reentrant` is None."""

    def __init__(self, use_reentrant: bool | None) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant

    def features(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for step in (self.one, self.two, self.three):
            x = step(x) if self.use_reentrant is None else checkpoint(step, x, use_reentrant=self.use_reentrant)
        return x


class Swish(torch.autograd.Function):
    """An activation with a custom backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return gradient * (gate + x * gate * (1 - gate))


class OwnFunction(Small):
    """Two activations with a custom backward pass."""

    def features(self, images: Tensor) -> Tensor:
        return Swish.apply(self.three(Swish.apply(self.two(self.one(self.stem(images))))))


class Repeated(Small):
    """One block that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again = block(32, 32, 1)

    def features(self, images: Tensor) -> Tensor:
        return self.three(self.again(self.again(self.two(self.one(self.stem(images))))))


class Reshaped(nn.Module):
    """Manual channels last: a linear layer over the channels, permuted back, followed by an addition without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = block(3, 24, 4), block(24, 40)
        self.mix, self.last = nn.Linear(24, 24), nn.Linear(40, 40)
        self.end = nn.Identity()
        self.head = nn.Linear(40, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = self.down(x + self.mix(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        x = self.end(x + self.last(x.permute(0, 2, 3, 1)).relu().permute(0, 3, 1, 2))
        return self.head(x.mean((2, 3)))


def quantized(network: nn.Module) -> nn.Module:
    """Linear layers in 8 bits with dynamic quantization."""
    return torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, torch.qint8)


def _with_numbers(network: nn.Module) -> Callable[[Tensor], Any]:
    numbers = torch.tensor([[0.5, -1.0, 2.0, 0.25]])
    return lambda images: network(images, numbers.to(images).expand(len(images), -1))


def _with_a_dict(network: nn.Module) -> Callable[[Tensor], Any]:
    return lambda images: network({"pixel_values": images, "mask": torch.ones_like(images[:, :1])})["logits"]


def own() -> Iterator[Network]:
    """Return the custom networks."""
    yield Network("own two inputs", lambda size: TwoInputs(), forward=_with_numbers)
    yield Network("own dict input", lambda size: DictInput(), forward=_with_a_dict)
    yield Network("own checkpoint, reentrant", lambda size: Checkpointed(True))
    yield Network("own checkpoint", lambda size: Checkpointed(False))
    # The rounding of activations depends on the range of the whole batch.
    yield Network("own quantized linear layers", lambda size: Reshaped(), finish=quantized, rounding=0.05)
    yield Network("own autograd.Function", lambda size: OwnFunction())
    yield Network("own repeated block", lambda size: Repeated())
    yield Network("own channels last in a block", lambda size: Reshaped())


PLACED = ("positions", "steady", "integrated_gradients", "deep_lift", "lrp", "rise")
"""The checks whose oracles do not judge the default layer, nor compute a map at its own cells."""


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
    """Return the networks that change the geometry of their images."""
    for name, change in GEOMETRY.items():
        yield Network(f"unusual {name}", lambda size, change=change: Small(change), checks=PLACED)  # type: ignore[misc]
