"""Targets for outputs that are measured values: depth, pose, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from explainers.class_indices import count_mismatch
from explainers.errors import BadTarget, shorten
from explainers.options import whole_number, whole_numbers
from explainers.outputs import describe_output, named, tensors_in
from explainers.targets import Target


@dataclass(frozen=True, eq=False)
class Regression(Target):
    """Mean of one part of the output, in the unit of the model's values.

        Regression("predicted_depth", mask=mask, unit="m")     mean depth of a region, [N, H, W]
        Regression(index=(4, 0), unit="px")                    x of the fifth key point, [N, points, 2]
        Regression(index=2)                                    the third count, [N, K]

    `name` is the key or attribute of the output; None if the output has only one tensor. `index` selects along the axes
    after the images. The rest is averaged; for the last two axes, by the weights of a `mask` [H, W], or of one mask for
    each image, [N, H, W]. `unit` only appears in the description.
    """

    name: str | None = None
    index: int | tuple[int, ...] = ()
    mask: Tensor | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        one = whole_number(self.index)
        index = whole_numbers(self.index) if one is None else (one,)
        if index is None or any(each < 0 for each in index):
            raise BadTarget(f"index={shorten(self.index)} is not valid. Give an index from 0, or one for each axis.")
        object.__setattr__(self, "index", index)
        mask = self.mask
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.ndim not in (2, 3):
                raise BadTarget(f"mask={shorten(mask)} is not valid. Give a tensor [H, W], or [N, H, W] for N images.")
            if bool((mask < 0).any()) or not bool(mask.flatten(-2).any(-1).all()):
                raise BadTarget("mask must have weights of at least 0, and at least one above 0 for each image.")

    def check(self, count: int) -> None:
        if self.mask is not None and self.mask.ndim == 3 and len(self.mask) not in (1, count):
            raise count_mismatch(f"{len(self.mask)} masks were", count, "one [H, W] for all")

    def __call__(self, output: Any) -> Tensor:
        """Return the means [N]."""
        values = self._tensor(output)
        for position in self.index if isinstance(self.index, tuple) else (self.index,):
            if values.ndim < 2 or position >= values.shape[1]:
                raise BadTarget(
                    f"index={self.index} does not exist in the values of shape {tuple(self._tensor(output).shape)}. "
                    "Give one index for each axis after the images, each below the axis's size."
                )
            values = values[:, position]
        if self.mask is None:
            return values.reshape(len(values), -1).mean(1)
        if values.ndim < 3 or tuple(values.shape[-2:]) != tuple(self.mask.shape[-2:]):
            raise BadTarget(
                f"mask has size {tuple(self.mask.shape[-2:])}, but the values have shape {tuple(values.shape)}. Give a "
                "mask of the size of their last two axes."
            )
        weights = self.mask.to(values)
        weights = weights / weights.sum((-2, -1), keepdim=True)
        maps = values.flatten(1, -3).mean(1) if values.ndim > 3 else values
        return (maps * weights).sum((1, 2))

    def _tensor(self, output: Any) -> Tensor:
        found = [tensor for _, tensor in tensors_in(output)] if self.name is None else [named(output, self.name)]
        if len(found) != 1 or not isinstance(found[0], Tensor):
            wanted = "one tensor" if self.name is None else f"a tensor {self.name!r}"
            raise BadTarget(
                f"The model returned {describe_output(output)}, not {wanted}. Give the name of a part of the output: "
                "Regression('predicted_depth')."
            )
        return found[0]

    def rows(self, image_indices: Sequence[int]) -> Target:
        if self.mask is None or self.mask.ndim < 3 or len(self.mask) == 1:
            return self
        return replace(self, mask=self.mask[list(image_indices)])

    def __repr__(self) -> str:
        parts = [repr(self.name)] if self.name else []
        parts += [f"index={self.index}"] if self.index != () else []
        parts += [] if self.mask is None else [f"mask of {int(self.mask.count_nonzero())} pixels"]
        parts += [f"unit={self.unit!r}"] if self.unit else []
        return f"Regression({', '.join(parts)})"
