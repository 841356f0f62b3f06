"""Scores made of a class's score and those of all classes, for methods that ask about the difference.

The class is still the caller's: where it is left open, the top class of each clean picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget
from explainers.findings import note_scores
from explainers.passes.run import at_least_float32
from explainers.targets import (
    Logit,
    LogProbability,
    Probability,
    Target,
    TargetLike,
    Through,
    Unit,
    evaluate,
    fix,
    scores_of,
)

Combine = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(own score [N], all scores [N, K], which of them is its own [N, K]) -> score [N]."""


@dataclass(frozen=True, eq=False)
class Derived(Target):
    """What `combine` makes of the wanted target's scores and all scores, on the clean pictures."""

    wanted: TargetLike
    combine: Combine
    needed: bool = True
    """Whether there must be class scores; else the wanted target alone is the score where there are none."""

    def __call__(self, output: Any) -> Tensor:
        """[N]."""
        try:
            scores = scores_of(output)
        except BadTarget:
            if self.needed:
                raise
            return fix(self.wanted, output, 0)(output)
        own = fix(self.wanted, output, len(scores))
        found = evaluate(own, output, len(scores))
        # What a reader wants to see is the class and its score.
        note_scores(at_least_float32(scores), own, at_least_float32(found))
        return self.combine(found, scores, _own(own, found, scores))


def _own(target: Target, found: Tensor, scores: Tensor) -> Tensor:
    """The column that is the target's, as a mask: of a function, the first column that has just its score, if any."""
    if isinstance(target, Logit):
        classes = torch.as_tensor(target.classes, device=scores.device).expand(len(scores))
        return torch.arange(scores.shape[1], device=scores.device) == classes[:, None]
    equal = scores == found[:, None]
    return equal & (equal.cumsum(1) == 1)


def among_scores(target: TargetLike) -> bool:
    """Whether the target is a score in logits, which others can be compared with."""
    return not isinstance(target.target if isinstance(target, Through) else target, (Probability, LogProbability, Unit))


def derived(target: TargetLike, combine: Combine, *, needed: bool = True) -> TargetLike:
    """The target that asks for `combine` of what `target` asks for; `needed` as in `Derived`.

    Errors   BadTarget for a target that is no logit: probabilities and units
    """
    if not among_scores(target):
        raise BadTarget(
            f"{target!r} is not in logits, and other scores are to be compared with it. Give a class, Logit(class) or "
            "a function of the scores."
        )
    if isinstance(target, Through):
        return Through(Derived(target.target, combine, needed), target.layer, target.channels)
    return Derived(target, combine, needed)


def residual_softmax(score: Tensor, scores: Tensor, own: Tensor) -> Tensor:
    """ReST: logit plus log-probability, so that neither a saturated softmax nor its missing competition shows.

    Source   Cai 2025, the utility ReST, arXiv:2501.06261
    """
    return 2 * score - scores.logsumexp(1)


def probability(score: Tensor, scores: Tensor, own: Tensor) -> Tensor:
    """The softmax probability that belongs to a score among the scores."""
    return (score - scores.logsumexp(1)).exp()


def nearest_references(score: Tensor, scores: Tensor, own: Tensor, count: int) -> Tensor:
    """[N, count] columns of the scores nearest to the target's own, which is left out; the lower class first of equals.

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
