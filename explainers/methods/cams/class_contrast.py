"""Scores made of a class's score and all classes' scores, for methods that explain their difference.

The class is the caller's target: by default the top class of each clean image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget
from explainers.findings import note_scores
from explainers.outputs import scores_of
from explainers.passes.run import at_least_float32
from explainers.targets import (
    Logit,
    LogProbability,
    Probability,
    Target,
    TargetLike,
    Through,
    Unit,
    as_target,
    evaluate,
    fix,
)

Combine = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(own score [N], all scores [N, K], mask of the own column [N, K]) -> score [N]."""


@dataclass(frozen=True, eq=False)
class Derived(Target):
    """`combine` of the wanted target's scores and all scores, on the clean images."""

    wanted: Target | None
    combine: Combine
    needed: bool = True
    """Whether class scores are required; else, where there are none, the wanted target alone is the score."""

    def check(self, count: int) -> None:
        if self.wanted is not None:
            self.wanted.check(count)

    def __call__(self, output: Any) -> Tensor:
        """[N]."""
        try:
            scores = scores_of(output)
        except BadTarget:
            if self.needed:
                raise
            return fix(self.wanted, output, 0)(output)
        own = fix(self.wanted, output, len(scores))
        score = evaluate(own, output, len(scores))
        # Reported is the class with its own score, not the difference.
        note_scores(at_least_float32(scores), own, at_least_float32(score))
        return self.combine(score, scores, _own(own, score, scores))


def _own(target: Target, score: Tensor, scores: Tensor) -> Tensor:
    """The target's own column, as a mask; of a function, the first column equal to its score, if any."""
    if isinstance(target, Logit):
        classes = torch.as_tensor(target.classes, device=scores.device).expand(len(scores))
        return torch.arange(scores.shape[1], device=scores.device) == classes[:, None]
    equal = scores == score[:, None]
    return equal & (equal.cumsum(1) == 1)


def among_scores(target: TargetLike) -> bool:
    """Whether the target is a logit, comparable with the other classes' scores."""
    return not isinstance(target.target if isinstance(target, Through) else target, (Probability, LogProbability, Unit))


def derived(target: TargetLike, combine: Combine, *, needed: bool = True) -> TargetLike:
    """The target `combine` of `target`'s score and all scores; `needed` as in `Derived`.

    Errors   BadTarget for a target that is no logit: probabilities and units
    """
    if not among_scores(target):
        raise BadTarget(
            f"{target!r} is not in logits: it cannot be compared with other scores. Give a class, Logit(class) or "
            "a function of the scores."
        )
    if isinstance(target, Through):
        return Through(derived(target.target, combine, needed=needed), target.layer, target.channels)
    return Derived(None if target is None else as_target(target), combine, needed)


def residual_softmax(score: Tensor, scores: Tensor, own: Tensor) -> Tensor:
    """ReST: logit plus log-probability, which neither saturates as the softmax does nor ignores the other classes.

    Source   Cai 2025, the utility ReST, arXiv:2501.06261
    """
    return 2 * score - scores.logsumexp(1)


def probability(score: Tensor, scores: Tensor, own: Tensor) -> Tensor:
    """The softmax probability of the score among the scores."""
    return (score - scores.logsumexp(1)).exp()


def nearest_references(score: Tensor, scores: Tensor, own: Tensor, count: int) -> Tensor:
    """[N, count] columns of the scores nearest to the target's own, which is excluded; ties go to the lower class.

    Errors   BadTarget where there is no other class
    """
    if scores.shape[1] < 2:
        raise BadTarget("The model gives one score, so there is no other class to compare with. Use grad_cam.")
    distances = (scores - score[:, None]).detach().abs().masked_fill(own, torch.inf)
    return distances.sort(dim=1, stable=True).indices[:, : min(count, scores.shape[1] - 1)]


def against_mean(strength: float, count: int) -> Combine:
    """s - strength × mean of the nearest references' scores."""

    def combine(score: Tensor, scores: Tensor, own: Tensor) -> Tensor:
        references = scores.gather(1, nearest_references(score, scores, own, count))
        return score - strength * references.mean(1)

    return combine


def against_likely(strength: float, count: int) -> Combine:
    """Σ p (s - strength × reference) / Σ p over the nearest references, p their probabilities, differentiated too."""

    def combine(score: Tensor, scores: Tensor, own: Tensor) -> Tensor:
        references = scores.gather(1, nearest_references(score, scores, own, count))
        return score - strength * (references.softmax(1) * references).sum(1)

    return combine
