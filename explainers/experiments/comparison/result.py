"""The result of `compare_models`."""

from __future__ import annotations

import math
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
    prediction, at the larger of both resolutions, and `map_correlations` [N] their rank correlations. `map_notes` has
    the reason for each that is NaN, such as a map with the same value everywhere, and an empty text for the others.

    `similarity` is the unbiased linear CKA [LA, LB] of the layers `layers_a` and `layers_b`, in [-1, 1], and
    `similarity_interval` [LA, LB, 2] its 95% interval over the images (jackknife), in [0, 1]. Both are NaN for fewer
    than 8 different images, and for a layer with the same output for all of them; `similarity_note` is the reason.

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
    map_notes: list[str]
    layers_a: list[str]
    layers_b: list[str]
    similarity: Tensor
    similarity_interval: Tensor
    similarity_note: str
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

    @property
    def similarity_texts(self) -> list[list[str]]:
        """The similarities with their intervals; only the interval if it includes 0, and "–" without a value."""
        cells = zip(self.similarity.tolist(), self.similarity_interval.tolist(), strict=True)
        return [[_similarity_text(value, *limits) for value, limits in zip(*row, strict=True)] for row in cells]

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the predictions and maps by image, and the differences of the layers."""
        pairs = zip(*self.predictions, strict=True)
        values = zip(self.map_notes, self.map_correlations.tolist(), strict=True)
        correlations = [note or value for note, value in values]
        rows = [
            [n, class_name(a, labels), class_name(b, labels), "changed" if a != b else "", correlations[n]]
            for n, (a, b) in enumerate(pairs)
        ]
        heads = ["image", "class of A", "class of B", "prediction", f"rank correlation of {self.method}"]
        parts = [paragraphs([repr(self)]), table_html(heads, rows)]
        if self.similarity_note:
            parts.append(paragraphs([f"Similarity of layers (CKA): {self.similarity_note}"]))
        if self.similarity.isfinite().any():
            rows = [[name, *row] for name, row in zip(self.layers_a, self.similarity_texts, strict=True)]
            table = table_html(["A \\ B", *self.layers_b], rows)
            parts.append(folded("Similarity of layers (CKA, 95% interval)", table))
        if self.differences:
            layers = table_html(["layer", "relative difference"], list(self.differences.items()))
            parts.append(folded(f"{len(self.differences)} layers", layers))
        return Display("".join(parts), repr(self))

    def __repr__(self) -> str:
        n = len(self.scores_a)
        known = self.map_correlations[~self.map_correlations.isnan()]
        of = "" if len(known) == n else f" ({len(known)} of {n} images)"
        mean = f"{float(known.mean()):.2f}{of}" if len(known) else f"not tested ({self.map_notes[0]})"
        where = "" if self.first_difference is None else f", first different layer {self.first_difference}"
        return (
            f"ModelComparison({len(self.changed)} of {n} prediction{'s' * (n != 1)} changed, mean rank correlation of "
            f"{self.method} {mean}{where})"
        )


def _similarity_text(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.2f} ({low:.2f}–{high:.2f})" if low > 0 else f"0–{high:.2f}"
