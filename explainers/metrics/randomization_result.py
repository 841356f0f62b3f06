"""`Randomization`, the result of `randomization_test`: similarities of maps, the verdict and a summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from explainers.display.charts import charts_html, charts_images, line_chart
from explainers.display.classes import target_name
from explainers.display.display import Display, Displayed
from explainers.display.tables import folded, paragraphs, table_html
from explainers.metrics.evaluation import as_slice

STATISTICS = ("signed", "magnitude", "ssim", "absolute", "blank")


@dataclass(frozen=True, eq=False)
class Randomization(Displayed):
    """The result of `randomization_test`: the similarity of the map to the maps of networks with randomized weights.

    `steps` are the names of the randomized blocks, from the output to the input; `signed`, `magnitude` (Spearman's rank
    correlation of the maps, and of their magnitudes) and `ssim` are [steps, N], means over the seeds; NaN if a map is
    constant or not finite, or if the test stopped before. `absolute` [steps, N] is the mean of |`correlation`|, which
    is 1 for a map that only changes its sign between seeds; `blank` [steps, N] is the fraction of seeds with a constant
    map. `by_size`: the map has one attribution per pixel and is drawn by magnitude. `done` of `total` maps were
    computed.
    """

    LAST_LAYER: ClassVar[float] = 0.8
    ALL_LAYERS: ClassVar[float] = 0.5
    """Limits of the rank correlation: below them, a map depends on the weights of the last layer, or of all layers.

    On EfficientNet-Lite0 and four images, the plain gradient, input x gradient and DeepLIFT have 0.49 to 0.56 after the
    last layer and 0.05 to 0.18 at the end. Guided backpropagation, deconvnet and excitation backpropagation have 0.99
    to 1.00 and 0.21 to 0.45, maps that ignore the network 1.00 and 1.00.
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

    def __getitem__(self, index: int | slice) -> Randomization:
        """Return the result for one image or for several."""
        one = as_slice(index, len(self))
        target = self.target[one] if isinstance(self.target, list) else self.target
        return replace(self, target=target, **{name: getattr(self, name)[:, one] for name in STATISTICS})

    @property
    def correlation(self) -> Tensor:
        """The correlations [steps, N]: `magnitude` for maps that are drawn by magnitude, else `signed`."""
        return self.magnitude if self.by_size else self.signed

    @property
    def after_last_layer(self) -> float:
        """The mean correlation after randomizing the last layer with weights, over the images that have one."""
        return float(self.correlation[0].nanmean())

    @property
    def after_all_layers(self) -> float:
        """The mean correlation at the end of a cascade, NaN for the other orders."""
        return float(self.correlation[-1].nanmean()) if self.order == "cascade" else math.nan

    @property
    def passes(self) -> bool | None:
        """Whether the map depends on the weights, None if unknown.

        The correlation must fall below `LAST_LAYER` after the last layer and, in a cascade, below `ALL_LAYERS` at the
        end.
        """
        known = [(self.after_last_layer, self.LAST_LAYER)]
        known += [(self.after_all_layers, self.ALL_LAYERS)] if self.order == "cascade" else []
        if any(abs(value) >= limit for value, limit in known) or self.turns:
            return False
        return None if any(math.isnan(value) for value, _ in known) else True

    def depends_on_weights(self, reads_class: bool = True) -> bool | None:
        """Return whether a map depends on the weights, None if unknown, by the verdict of the test for its method.

        A class-agnostic method (`METHODS[name].reads_class` is False) does not depend on the last layer, so only the
        end of a cascade counts.
        """
        if reads_class or self.order != "cascade":
            return self.passes
        correlation = self.after_all_layers
        return None if math.isnan(correlation) else abs(correlation) < self.ALL_LAYERS

    @property
    def turns(self) -> bool:
        """Whether only the sign of the map changes, between seeds or images."""
        checked = self.absolute[[0, -1] if self.order == "cascade" else [0]]
        return bool((checked.nanmean(1) >= self.LAST_LAYER).any()) and abs(self.after_last_layer) < self.LAST_LAYER

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row for each image and step."""
        return [
            {"image": n, "step": step, "drawn": name}
            | {each: float(getattr(self, each)[step, n]) for each in STATISTICS}
            for n in range(len(self))
            for step, name in enumerate(self.steps)
        ]

    def __str__(self) -> str:
        what = "rank correlation of magnitudes" if self.by_size else "rank correlation"
        if self.after_last_layer != self.after_last_layer:
            reason = "the map is constant or not finite" if self.done else "it was stopped before the first map"
            return f"{self.method}: the randomization test has no result, because {reason}."
        unknown = "has not completed" if self.done < self.total else "has no verdict in"
        verdict = {True: "passes", False: "fails", None: unknown}[self.passes]
        found = f"{self.after_last_layer:.2f} after randomizing {self.steps[0]} (limit {self.LAST_LAYER})"
        if self.order == "cascade" and not math.isnan(self.after_all_layers):
            found += f", {self.after_all_layers:.2f} after randomizing all weights (limit {self.ALL_LAYERS})"
        elif self.order == "independent":
            means = self.correlation.nanmean(1)
            found += f"; least affected by {self.steps[int(means.nan_to_num(-2).argmax())]} ({float(means.max()):.2f})"
        blank = float(self.blank.nanmean())
        notes = f" {blank:.0%} of the maps were constant or not finite." if blank > 0 else ""
        notes += " Only the sign of the map changes with the weights." if self.turns else ""
        short = f" Stopped after {self.done} of {self.total} maps." if self.done < self.total else ""
        return f"{self.method} {verdict} the randomization test: {what} {found}.{notes}{short}"

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the verdict, and the correlation after each step."""
        means = self.correlation.double().nanmean(1).tolist()
        points = list(enumerate(means, 1))
        charts = line_chart("Rank correlation with the original map", {"map": points}, x="randomized blocks", y="")
        rows = [[k, name, mean] for (k, mean), name in zip(points, self.steps, strict=True)]
        table = folded(f"{len(rows)} steps", table_html(["step", "randomized block", "correlation"], rows))
        about = paragraphs([f"Target: {target_name(self.target, labels)}.", str(self)])
        return Display(about + charts_html(charts) + table, repr(self), charts_images(charts))

    def __repr__(self) -> str:
        where = f" at {self.layer}" if self.layer else ""
        return (
            f"Randomization({self.method}{where}, {self.order}, {len(self.steps)} steps, {len(self)} "
            f"image{'s' * (len(self) > 1)}, passes {self.passes})"
        )
