"""Targets that combine the score of one class with the scores of all classes, for contrastive methods.

The class is the caller's target, by default the top class of each clean image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from explainers.call.scores import at_least_float32
from explainers.default_targets import resolve_target
from explainers.derived_targets import LayerTarget, LogProbability, Probability, Through
from explainers.errors import BadTarget, shorten
from explainers.findings import note_scores
from explainers.probabilities import default_score, log_probability_of
from explainers.targets import Logit, Target, TargetLike, as_target, evaluate, scores_of

Combine = Callable[[Tensor, Tensor, Tensor, str], Tensor]
"""(own score [N], all scores [N, K], mask of the own column [N, K], one of SCORES) -> score [N]."""


@dataclass(frozen=True, eq=False)
class DerivedTarget(Target):
    """A target that applies `combine` to the scores of the given target and all scores, on the clean images."""

    base: Target | None
    combine: Combine
    needed: bool = True
    """Whether class scores are required; if not, the given target is used unchanged when there are none."""
    score: str | None = None
    """How scores become probabilities."""

    @property
    def reads_probability(self) -> bool:
        return self.score is None and self.combine in (residual_softmax, probability)

    def with_score(self, score: str | None) -> Target:
        return self if self.score is not None else replace(self, score=score)

    def check(self, count: int) -> None:
        if self.base is not None:
            self.base.check(count)

    def rows(self, image_indices: Sequence[int]) -> Target:
        return self if self.base is None else replace(self, base=self.base.rows(image_indices))

    def __call__(self, output: Any) -> Tensor:
        """[N]."""
        try:
            scores = scores_of(output)
        except BadTarget:
            if self.needed:
                raise
            own = resolve_target(self.base, output, 0)
            score = own(output)
            note_scores(None, own, at_least_float32(score))
            return score
        own = resolve_target(self.base, output, len(scores))
        score = evaluate(own, output, len(scores))
        # Report the class with its own score, not the difference.
        note_scores(at_least_float32(scores), own, at_least_float32(score))
        kind = self.score or default_score(scores.shape[1])
        return self.combine(score, scores, _own_column(own, score, scores), kind)


def _own_column(target: Target, score: Tensor, scores: Tensor) -> Tensor:
    """Return a mask of the target's own column; for a function, of the first column equal to its score, if any."""
    if isinstance(target, Logit):
        classes = torch.as_tensor(target.classes, device=scores.device).expand(len(scores))
        return torch.arange(scores.shape[1], device=scores.device) == classes[:, None]
    equal = scores == score[:, None]
    return equal & (equal.cumsum(1) == 1)


def among_scores(target: TargetLike) -> bool:
    """Check whether the target is a logit, comparable with the scores of other classes."""
    own = target.target if isinstance(target, Through) else target
    return not isinstance(own, (Probability, LogProbability, LayerTarget))


def derive_target(target: TargetLike, combine: Combine, *, needed: bool = True) -> TargetLike:
    """Create a target that applies `combine` to the score of `target` and all scores; `needed` as in `DerivedTarget`.

    Errors   BadTarget if the target is not a logit, but a probability or a unit
    """
    if not among_scores(target):
        raise BadTarget(
            f"{shorten(target)} is not in logits, so it cannot be compared with other scores. Give a class, "
            "Logit(class) or a "
            "function of the scores."
        )
    if isinstance(target, Through):
        return Through(derive_target(target.target, combine, needed=needed), target.layer, target.channels)
    return DerivedTarget(None if target is None else as_target(target), combine, needed)


def residual_softmax(score: Tensor, scores: Tensor, own: Tensor, kind: str) -> Tensor:
    """Return ReST, logit plus log-probability, which does not saturate like softmax, nor ignore the other classes.

    For a network that returns probabilities, the score is the probability. Scores without probabilities are returned
    unchanged.

    Source   Cai 2025, the utility ReST, arXiv:2501.06261
    """
    if kind == "softmax":
        return 2 * score - scores.logsumexp(1)
    return score if kind == "logit" else score + log_probability_of(score, scores, kind)


def probability(score: Tensor, scores: Tensor, own: Tensor, kind: str) -> Tensor:
    """Return the probability of a score among all scores."""
    return log_probability_of(score, scores, kind).exp()


def nearest_references(score: Tensor, scores: Tensor, own: Tensor, count: int) -> Tensor:
    """Return the columns [N, count] of the scores nearest to the target's own; for ties, the lower class comes first.

    Errors   BadTarget if the model has only one class
    """
    if scores.shape[1] < 2:
        raise BadTarget("The model returns a single score, but this method compares two classes. Use grad_cam.")
    distances = (scores - score[:, None]).detach().abs().masked_fill(own, torch.inf)
    return distances.sort(dim=1, stable=True).indices[:, : min(count, scores.shape[1] - 1)]


def against_nearest(strength: float, count: int, weighting: str) -> Combine:
    """Create the contrast s - strength × reference, averaged over the scores of the nearest references.

    The weights are equal, or with "likely" their probabilities, which have gradients.
    """

    def combine(score: Tensor, scores: Tensor, own: Tensor, kind: str) -> Tensor:
        references = scores.gather(1, nearest_references(score, scores, own, count))
        mean = (references.softmax(1) * references).sum(1) if weighting == "likely" else references.mean(1)
        return score - strength * mean

    return combine
