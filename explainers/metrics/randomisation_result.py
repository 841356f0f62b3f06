"""`Randomisation`: how alike a map and those of networks with new weights are, the verdict and the sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from explainers.metrics.evaluation import one_or_several

FIGURES = ("signed", "magnitude", "ssim", "absolute", "blank")
LAST_LAYER, ALL_LAYERS = 0.8, 0.5
"""Rank correlations below which a map depends on the last layer's weights, and on all weights together.

On EfficientNet-Lite0 and four photographs the plain gradient, input x gradient and DeepLIFT have 0.49 to 0.56 after the
last layer and 0.05 to 0.18 at the end, guided backpropagation, deconvnet and excitation backpropagation 0.99 to 1.00
and 0.21 to 0.45, maps that ignore the network 1.00 and 1.00.
"""


@dataclass(frozen=True, eq=False)
class Randomisation:
    """The result of `randomisation_test`: how alike the map and that of a network with new weights are.

    `steps` name what was drawn anew, from the output to the input; `signed`, `magnitude` (Spearman's rank correlation
    of the maps, and of their magnitudes) and `ssim` are [steps, N], means over the seeds; NaN where a map is constant
    or not finite, or the test ended before. `absolute` [steps, N] is the mean of |`correlation`|, which a map that only
    changes its sign from seed to seed keeps at 1; `blank` [steps, N] the fraction of seeds with a constant map.
    `by_size`: the map is one attribution a pixel, which is drawn by magnitude. `done` of `total` maps were made.
    """

    steps: tuple[str, ...]
    signed: Tensor
    magnitude: Tensor
    ssim: Tensor
    absolute: Tensor
    blank: Tensor
    method: str
    layer: str | None
    target: list[int] | str
    order: str
    by_size: bool
    done: int
    total: int
    options: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __len__(self) -> int:
        return self.signed.shape[1]

    def __getitem__(self, picture: int | slice) -> Randomisation:
        """The result for one of the images, or for several."""
        one = one_or_several(picture, len(self))
        target = self.target[one] if isinstance(self.target, list) else self.target
        return replace(self, target=target, **{name: getattr(self, name)[:, one] for name in FIGURES})

    @property
    def correlation(self) -> Tensor:
        """[steps, N]: `magnitude` for maps that are drawn by magnitude, else `signed`."""
        return self.magnitude if self.by_size else self.signed

    @property
    def after_last_layer(self) -> float:
        """The correlation once the last layer with weights was drawn anew, over the images that have one."""
        return float(self.correlation[0].nanmean())

    @property
    def after_all_layers(self) -> float:
        """The same at the end of a cascade, NaN in the other orders."""
        return float(self.correlation[-1].nanmean()) if self.order == "cascade" else math.nan

    @property
    def passes(self) -> bool | None:
        """Whether the map depends on the weights: the correlation falls below `LAST_LAYER` after the last layer and, in
        a cascade, below `ALL_LAYERS` at the end; None where that is not known.
        """
        known = [(self.after_last_layer, LAST_LAYER)]
        known += [(self.after_all_layers, ALL_LAYERS)] if self.order == "cascade" else []
        if any(abs(value) >= limit for value, limit in known) or self.turns:
            return False
        return None if any(math.isnan(value) for value, _ in known) else True

    @property
    def turns(self) -> bool:
        """Whether the map stays the same but for its sign, which differs between the seeds or images."""
        checked = self.absolute[[0, -1] if self.order == "cascade" else [0]]
        return bool((checked.nanmean(1) >= LAST_LAYER).any()) and abs(self.after_last_layer) < LAST_LAYER

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each image and step."""
        return [
            {"image": n, "step": step, "drawn": name} | {each: float(getattr(self, each)[step, n]) for each in FIGURES}
            for n in range(len(self))
            for step, name in enumerate(self.steps)
        ]

    def __str__(self) -> str:
        what = "rank correlation of magnitudes" if self.by_size else "rank correlation"
        if self.after_last_layer != self.after_last_layer:
            why = "the map is constant, or not finite" if self.done else "it was stopped before the first map"
            return f"{self.method}: the randomisation test has no result, {why}."
        unknown = "has not ended" if self.done < self.total else "has no verdict in"
        verdict = {True: "passes", False: "fails", None: unknown}[self.passes]
        found = f"{self.after_last_layer:.2f} after {self.steps[0]} was drawn anew (limit {LAST_LAYER})"
        if self.order == "cascade" and not math.isnan(self.after_all_layers):
            found += f", {self.after_all_layers:.2f} after all weights were (limit {ALL_LAYERS})"
        elif self.order == "independent":
            means = self.correlation.nanmean(1)
            found += f"; least affected by {self.steps[int(means.nan_to_num(-2).argmax())]} ({float(means.max()):.2f})"
        blank = float(self.blank.nanmean())
        notes = f" {blank:.0%} of the maps were constant or not finite." if blank > 0 else ""
        notes += " Its sign changes with the weights, the map does not." if self.turns else ""
        short = f" Stopped after {self.done} of {self.total} maps." if self.done < self.total else ""
        return f"{self.method} {verdict} the randomisation test: {what} {found}.{notes}{short}"

    def __repr__(self) -> str:
        where = f" at {self.layer}" if self.layer else ""
        return (
            f"Randomisation({self.method}{where}, {self.order}, {len(self.steps)} steps, {len(self)} "
            f"image{'s' * (len(self) > 1)}, passes {self.passes})"
        )
