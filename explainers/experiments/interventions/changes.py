"""What an intervention does to the selected values of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadOption, kind_of, shorten
from explainers.options import whole_number

Function = Callable[[Tensor], Tensor]
"""Receives the selected channels [N, k, ...] and returns their new values in the same shape."""


@dataclass(frozen=True)
class Scale:
    """Multiply the selected values by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        _check_finite("factor", self.factor)

    def __call__(self, values: Tensor) -> Tensor:
        return values * self.factor


@dataclass(frozen=True)
class Clamp:
    """Limit the selected values to the range from `low` to `high`, in the layer's units; None does not limit."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise BadOption("Clamp() has no limit. Give low, high or both: Clamp(0, 1).")
        for name, value in vars(self).items():
            if value is not None:
                _check_finite(name, value)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise BadOption(f"Clamp({self.low}, {self.high}) is empty. Give a low that is at most high.")

    def __call__(self, values: Tensor) -> Tensor:
        return values.clamp(self.low, self.high)


@dataclass(frozen=True)
class AddNoise:
    """Add Gaussian noise with `std` times the standard deviation of the selected values of each image.

    All images, and all variants of an image that a method runs, get the same noise pattern.
    """

    std: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_finite("std", self.std)
        if self.std < 0:
            raise BadOption(f"std={self.std} is negative. Give a number of at least 0.")
        if whole_number(self.seed) is None or self.seed < 0:
            raise BadOption(f"seed={shorten(self.seed)} is not valid. Give an integer of at least 0.")

    def __call__(self, values: Tensor) -> Tensor:
        # Drawn on the CPU, so that a seed has the same noise on every device.
        noise = torch.randn(values.shape[1:], generator=torch.Generator().manual_seed(self.seed))
        spread = values.flatten(1).std(1, correction=0).reshape(-1, *[1] * (values.ndim - 1))
        return values + self.std * spread * noise.to(values)


@dataclass(frozen=True)
class Swap:
    """Replace the selected values by those of other images at the same positions (activation patching).

    `images` has the size of the explained images: one image for all of them, or one for each.
    """

    images: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.images, Tensor):
            raise BadOption(f"Swap needs a tensor of images [N, C, H, W], not {kind_of(self.images)}.")

    def check(self, images: Tensor) -> None:
        """Check that the other images suit the explained images.

        Errors   BadOption
        """
        other = self.images
        if other.ndim != images.ndim or other.shape[1:] != images.shape[1:]:
            raise BadOption(
                f"The images of Swap have shape {tuple(other.shape)}, but the explained images have "
                f"{tuple(images.shape)}. Resize them to the same size."
            )
        if len(other) not in (1, len(images)):
            raise BadOption(
                f"Swap has {len(other)} images for {len(images)} explained images. Give one, or one for each."
            )
        if other.device != images.device or not other.is_floating_point() or not bool(other.isfinite().all()):
            raise BadOption(
                f"The images of Swap must be finite floating-point numbers on {images.device}. They are {other.dtype} "
                f"on {other.device}."
            )


Change = float | str | Tensor | Scale | Clamp | AddNoise | Swap | Function
"""A number, "zeros", "mean", a tensor, one of the classes above, or a function."""


def as_function(value: Any) -> Function:
    """Return the function that computes new values from the selected ones; `Swap` is resolved by the caller.

    Errors   BadOption
    """
    if isinstance(value, str):
        if value not in _NAMED:
            raise BadOption(
                f"value={value!r} is not valid. Give a number, 'zeros', 'mean', Scale, Clamp, AddNoise or Swap."
            )
        return _NAMED[value]
    if isinstance(value, Tensor):
        if not bool(value.isfinite().all()):
            raise BadOption("value has numbers that are not finite (NaN or infinity). Give finite numbers.")
        return Constant(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_finite("value", value)
        return lambda values: torch.full_like(values, value)
    if callable(value) and not isinstance(value, type):
        return lambda values: _check_result(value(values), values)
    raise BadOption(
        f"value={shorten(value)} is not valid. Give a number, a tensor, 'zeros', 'mean', a function, Scale(2), "
        "Clamp(0, 1), AddNoise(0.5) or Swap(images)."
    )


def _mean(values: Tensor) -> Tensor:
    """Replace each channel by its mean over the positions of the image."""
    return values.mean(tuple(range(2, values.ndim)), keepdim=True).expand_as(values) if values.ndim > 2 else values


_NAMED: dict[str, Function] = {"zeros": torch.zeros_like, "mean": _mean}


@dataclass(frozen=True)
class Constant:
    """Replace the selected values by `values`, which broadcast to them; with several rows, one for each image."""

    values: Tensor

    def __call__(self, old: Tensor) -> Tensor:
        if self.values.ndim == old.ndim and len(self.values) not in (1, len(old)):
            raise BadOption(
                f"The intervention has values for {len(self.values)} images, but the forward pass has {len(old)} rows, "
                "for example variants of one image. Use one image for each intervention."
            )
        try:
            return self.values.detach().to(old).expand_as(old)
        except RuntimeError as reason:
            raise BadOption(
                f"value has shape {tuple(self.values.shape)}, which does not broadcast to the selected values "
                f"{tuple(old.shape)}. Give one value for each channel: {(old.shape[1], *[1] * (old.ndim - 2))}."
            ) from reason

    def rows(self, start: int, stop: int, axes: int) -> Constant:
        """Return the change of the images from `start` to `stop`, whose selected values have `axes` axes."""
        by_image = self.values.ndim == axes and len(self.values) > 1
        return Constant(self.values[start:stop]) if by_image else self


def _check_result(changed: Any, values: Tensor) -> Tensor:
    if not isinstance(changed, Tensor) or changed.shape != values.shape:
        found = tuple(changed.shape) if isinstance(changed, Tensor) else kind_of(changed)
        raise BadOption(
            f"The function returned {found}. It must return a tensor of the same shape, {tuple(values.shape)}."
        )
    return changed.to(values)


def _check_finite(name: str, value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise BadOption(f"{name}={shorten(value)} is not valid. Give a finite number.")


def describe_change(value: Any) -> str:
    """Return what was done, for results and captions: "replaced by 0", "replaced by the mean", "Scale(factor=2)"."""
    if isinstance(value, str):
        return "replaced by the mean" if value == "mean" else "replaced by 0"
    if isinstance(value, (int, float)):
        return f"replaced by {value:g}"
    if isinstance(value, Swap):
        return "replaced by those of other images"
    return f"replaced by a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shorten(value)
