"""What `explain` knows about the map of one image: the input of its statistics and of the detectors in diagnosis.py.

Both use raw values, before any scaling for display, because scaling makes blank and flat maps look alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from explainers.probabilities import probabilities_of


@dataclass(frozen=True, eq=False)
class Evidence:
    """One image's map and what is known about it; None if unknown.

    `map` is the map as drawn, `signed` the same before its ReLU, `raw` the result before any ReLU or reduction;
    `scores` [K] the model's output, which become probabilities by `score`, one of SCORES; `probability_target` says
    that the target is a probability or its logarithm, `target` is the class index if the target is one;
    `promised_sum` the sum of the raw values that the method guarantees (completeness, conservation); `relu` the
    method's option of that name, None if it has none; `reads_class` says whether the map depends on the target;
    `size` is the shorter side of the image, `sides` its rows and columns, `trained_size` the shorter side of the
    images that the network was trained on; `correlation` the rank correlation with the map of the class
    `runner_up`; `find_earlier_layer` looks up the next earlier stage, for remedies; `broken_layer` the first layer
    whose output is not finite; `stability` the correlation of the maps of two halves of the samples.
    """

    map: Tensor
    signed: Tensor
    raw: Tensor
    method: str
    layer: str | None
    scores: Tensor | None = None
    score: str | None = None
    probability_target: bool = False
    target: int | None = None
    target_score: float | None = None
    gradient_norm: float | None = None
    promised_sum: float | None = None
    relu: bool | None = None
    reads_class: bool = True
    size: int | None = None
    sides: tuple[int, int] | None = None
    trained_size: int | None = None
    correlation: float | None = None
    runner_up: int | None = None
    find_earlier_layer: Callable[[], str | None] | None = None
    broken_layer: str | None = None
    stability: float | None = None

    @cached_property
    def earlier_layer(self) -> str | None:
        """The next earlier stage, for remedies."""
        return None if self.find_earlier_layer is None else self.find_earlier_layer()

    @cached_property
    def probabilities(self) -> Tensor | None:
        """The probabilities [K] of the classes, if the scores have any."""
        return None if self.scores is None else probabilities_of(self.scores, self.score)

    @property
    def probability(self) -> float | None:
        """The probability of the target class, if the target is a class."""
        known = self.target is not None and self.probabilities is not None
        return float(self.probabilities[self.target]) if known else None  # type: ignore[index]

    @cached_property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest value of `signed`."""
        return float(self.signed.min()), float(self.signed.max())


def statistics(evidence: Evidence) -> dict[str, Any]:
    """Compute summary statistics of a map.

    Returns  `min`, `max`, `sum` of the raw values and `negative_share` (0 to 1), over the finite values (NaN if there
             are none); `entropy` of the shares of |map|, 0 for a single cell and 1 for an even map, blank maps
             included; `peak`, (row, column) or (frame, row, column) of the highest value, of the signed map if raw has
             the map's shape; `non_finite`, the number of raw values that are NaN or infinite; and, if known,
             `target_score`, `probability` of the target class, `gradient_norm`, `promised_sum`, and `stability`, the
             correlation of the maps of two halves of the samples. All are plain Python numbers.
    """
    map, raw = evidence.map, evidence.raw
    values = raw.detach().double().flatten()
    drawn = raw if raw.shape == map.shape else map
    # The position of the highest finite value.
    frame, cell = divmod(int(torch.where(drawn.isfinite(), drawn, -math.inf).argmax()), math.prod(drawn.shape[-2:]))
    row_and_column = divmod(cell, drawn.shape[-1])
    finite = values[values.isfinite()]
    found = {
        "min": float(finite.min()) if finite.numel() else math.nan,
        "max": float(finite.max()) if finite.numel() else math.nan,
        "sum": float(finite.sum()) if finite.numel() else math.nan,
        "negative_share": float((finite < 0).double().mean()) if finite.numel() else math.nan,
        "entropy": _entropy(map.detach().double()),
        "peak": row_and_column if map.ndim == 2 else (frame, *row_and_column),
        "non_finite": int(values.numel() - finite.numel()),
    }
    for name in ("target_score", "probability", "gradient_norm", "promised_sum", "stability"):
        if (value := getattr(evidence, name)) is not None:
            found[name] = value
    return found


def _entropy(map: Tensor) -> float:
    """Return the Shannon entropy of the shares of |map|, divided by that of an even map."""
    sizes = map.abs().flatten()
    if not sizes.isfinite().all():
        return math.nan
    if sizes.numel() < 2 or float(sizes.max()) == 0:
        return 1.0
    # Divide by the maximum first: the sum of very large values would overflow, and that of tiny ones underflow.
    shares = sizes / sizes.max()
    shares = shares / shares.sum()
    return min(1.0, max(0.0, float(torch.special.entr(shares).sum()) / math.log(sizes.numel())))
