"""The result of `compare_models`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from explainers.display.classes import class_name
from explainers.display.display import Display, Displayed
from explainers.display.tables import folded, paragraphs, table_html


@dataclass(frozen=True)
class ModelComparison(Displayed):
    """Two models, A and B, on the same N images.

    `scores_a`, `scores_b` are their scores [N, K]. `maps_a`, `maps_b` are the maps [N, h, w] of `method` for A's
    prediction, at the larger of both resolutions, and `map_correlations` [N] their rank correlations.

    `similarity` is the linear CKA [LA, LB] of the layers `layers_a` and `layers_b`, NaN for fewer than 4 images.

    `differences` are relative differences of the outputs of all layers with the same name, in running order, if both
    models have the same architecture: 0 means equal. `first_difference` is the first layer above the tolerance, None if
    there is none or if the architectures differ.
    """

    method: str
    scores_a: Tensor
    scores_b: Tensor
    maps_a: Tensor
    maps_b: Tensor
    map_correlations: Tensor
    layers_a: list[str]
    layers_b: list[str]
    similarity: Tensor
    differences: dict[str, float]
    first_difference: str | None

    @property
    def predictions(self) -> tuple[list[int], list[int]]:
        """The top classes of both models."""
        return self.scores_a.argmax(1).tolist(), self.scores_b.argmax(1).tolist()

    @property
    def changed(self) -> list[int]:
        """The images for which both models predict different classes."""
        return [n for n, (a, b) in enumerate(zip(*self.predictions, strict=True)) if a != b]

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the predictions and maps by image, and the differences of the layers."""
        pairs, correlations = zip(*self.predictions, strict=True), self.map_correlations.tolist()
        rows = [
            [n, class_name(a, labels), class_name(b, labels), "changed" if a != b else "", correlations[n]]
            for n, (a, b) in enumerate(pairs)
        ]
        heads = ["image", "class of A", "class of B", "prediction", f"rank correlation of {self.method}"]
        parts = [paragraphs([repr(self)]), table_html(heads, rows)]
        if self.differences:
            layers = table_html(["layer", "relative difference"], list(self.differences.items()))
            parts.append(folded(f"{len(self.differences)} layers", layers))
        return Display("".join(parts), repr(self))

    def __repr__(self) -> str:
        n = len(self.scores_a)
        where = "" if self.first_difference is None else f", first different layer {self.first_difference}"
        return (
            f"ModelComparison({len(self.changed)} of {n} prediction{'s' * (n != 1)} changed, mean rank correlation of "
            f"{self.method} {float(self.map_correlations.nanmean()):.2f}{where})"
        )
