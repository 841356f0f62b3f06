"""Data classes of the results of the faithfulness check."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image

import explainers

STEPS = 20
"""Number of steps of the curves."""


@dataclass(frozen=True)
class CheckProgress:
    """The progress of the check of the map of request `key`."""

    key: str
    fraction: float


@dataclass(frozen=True)
class ClassSimilarity:
    """The rank correlation with the map of the runner-up class.

    `correlation` is that of the maps before their ReLU, by which the library judges them, and `shown` that of the maps
    as they are shown, saved and compared; NaN if one of them is constant.
    """

    other: str
    correlation: float
    shown: float


@dataclass(frozen=True)
class CheckedMap:
    """The result of the faithfulness check of the map of request `key`; `facts` are those without the check.

    `order` [H, W], uint8, is the step at which each pixel is deleted or inserted, starting at 1. `blurred` is the image
    shown instead of deleted pixels. `unit` is the unit of the curves ("probability", "score") for the target `name`.
    `similarity` and `weights` are None if they were not measured.
    """

    key: str
    method: explainers.Method
    name: str
    unit: str
    evaluation: explainers.Evaluation
    order: torch.Tensor
    blurred: Image.Image
    facts: explainers.Facts
    headline: list[str] = field(default_factory=list)
    """The sentences above the map that follow from the verdict."""
    similarity: ClassSimilarity | None = None
    uncompared: str = ""
    """Why the map was not compared with that of another class, if there is a special reason."""
    weights: explainers.Randomization | str | None = None
    """The randomization test, or the message that explains why there is none."""
    more: bool = False
    """Whether the randomization test follows."""

    @property
    def verdict(self) -> explainers.Verdict:
        """The verdict on the map with all tests that were made of it."""
        test = self.weights
        weights = None if test is None or isinstance(test, str) else test.depends_on_weights(self.method.reads_class)
        tested = replace(
            self.facts,
            comparisons=self.evaluation.results,
            correlation=self.facts.correlation if self.similarity is None else self.similarity.correlation,
            depends_on_weights=weights,
        )
        return explainers.judge_facts(tested)

    def with_weights(self, weights: explainers.Randomization | str) -> CheckedMap:
        """Return a copy with the result of the randomization test."""
        return replace(self, weights=weights, more=False)


@dataclass(frozen=True)
class Weights:
    """The randomization test for request `key`, or the message that explains why there is none."""

    key: str
    method: explainers.Method
    test: explainers.Randomization | str


Controls = tuple[dict[str, Any], str]
"""The fields of an `Evaluation` about the controls, and the precision that they were measured in."""
