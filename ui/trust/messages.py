"""What the trust strip is told, step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    import torch

    import explainers
    from explainers.metrics.evaluation import Evaluation
    from explainers.metrics.randomisation_result import Randomisation

STEPS = 20
"""Steps of the curves."""


@dataclass(frozen=True)
class Judging:
    """The verdict on the map of question `key` is on its way."""

    key: str
    fraction: float


@dataclass(frozen=True)
class Alike:
    """The rank correlation with the map of the class that comes next, by its name."""

    other: str
    correlation: float


@dataclass(frozen=True)
class Verdict:
    """How far the map of question `key` can be believed.

    `order` [H, W], uint8, is the step at which each pixel is deleted or inserted, from 1; `blurred` the picture that
    deleted pixels show; `unit` what the curves show ("probability", "score"), of `name`. `alike` and `weights` are None
    where they were not measured.
    """

    key: str
    method: explainers.Method
    name: str
    unit: str
    evaluation: Evaluation
    order: torch.Tensor
    blurred: Image.Image
    alike: Alike | None = None
    weights: Randomisation | str | None = None
    """The test, or the sentence that says why there is none."""
    more: bool = False
    """Whether the weights are drawn anew next."""

    def with_weights(self, weights: Randomisation | str) -> Verdict:
        """The same, once the weights were drawn anew."""
        return replace(self, weights=weights, more=False)


@dataclass(frozen=True)
class Weights:
    """What came of drawing the weights anew for question `key`: the test, or why there is none."""

    key: str
    method: explainers.Method
    test: Randomisation | str


Controls = tuple[dict[str, Any], str]
"""The fields of an `Evaluation` that are the controls' own, and the precision that they were measured in."""
