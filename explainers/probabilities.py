"""How the scores of a network become probabilities, for reports, for metrics and for targets that are probabilities.

softmax    scores are logits of exclusive classes (the default for several scores)
sigmoid    scores are logits of independent labels (the default for a single score)
identity   scores are probabilities already: the network ends in a softmax or sigmoid
log        scores are logarithms of probabilities: the network ends in a log-sigmoid. (After a log-softmax,
           "softmax" has the same result, because the softmax of log p is p.)
logit      scores are not to be converted: regression, similarity
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from explainers.errors import BadOption, BadTarget, nearest, shorten, wrong_type
from explainers.targets import scores_of

SCORES = ("softmax", "sigmoid", "identity", "log", "logit")
WORDS = {"softmax": "softmax probability", "sigmoid": "sigmoid probability", "identity": "output probability"}
WORDS |= {"log": "output probability", "logit": "score"}
"""What a converted score is called in units."""
UNITS = {"identity": "probability", "log": "log-probability", "logit": "score"}
"""The unit of a score itself; "logit" for those that are not here."""
ROUNDING = 1e-3
"""Largest distance from [0, 1] of a probability in half precision."""

_declared: ContextVar[str | None] = ContextVar("declared_score", default=None)


@contextmanager
def declared_score(score: str | None) -> Iterator[None]:
    """Convert the scores of all networks that run inside the block in this way; None changes nothing.

    This is the option `score` of `explain` for calls that do not have it, such as those of a single method.

    Returns  nothing

    Example
        >>> with declared_score("sigmoid"):
        ...     maps = saliency(model, images, Probability(281))
        >>> maps.shape
        torch.Size([1, 3, 224, 224])
    """
    token = _declared.set(score if score is not None else _declared.get())
    try:
        yield
    finally:
        _declared.reset(token)


@contextmanager
def no_declared_score() -> Iterator[None]:
    """Ignore the surrounding `declared_score` inside the block, which runs code of the user."""
    token = _declared.set(None)
    try:
        yield
    finally:
        _declared.reset(token)


def declared() -> str | None:
    """Return the conversion that the surrounding call declares, or None."""
    return _declared.get()


def score_unit(score: str | None = None) -> str:
    """Return the unit of the scores of a network, given how they become probabilities (the option `score`).

    Returns  "logit", "probability", "log-probability", or "score" for those that have no probabilities

    Example
        >>> score_unit("softmax"), score_unit("identity")
        ('logit', 'probability')
    """
    return UNITS.get(score or "", "logit")


def check_score(score: object, output: Any = None) -> None:
    """Check the option `score`, and with a network's `output` also that its scores suit it; None means it is detected.

    Errors   BadOption; BadTarget for an output without scores [N, K]

    Example
        >>> check_score("softmax", torch.tensor([[0.1, 0.2]]))
        >>> check_score("identity", torch.tensor([[7.0, -2.0]]))
        Traceback (most recent call last):
        ...
        explainers.errors.BadOption: score='identity' says that the network returns probabilities, but its scores ...
    """
    if score is not None and (not isinstance(score, str) or score not in SCORES):
        hint = nearest(str(score), SCORES)
        known = ", ".join(SCORES)
        raise BadOption(f"score={shorten(score)} is not valid. {hint}Choose one of {known}, or None to detect it.")
    if isinstance(score, str) and output is not None:
        check_probabilities(scores_of(output), score)


def default_score(count: int) -> str:
    """Return the conversion of `count` scores about which nothing else is known."""
    return "sigmoid" if count == 1 else "softmax"


def check_probabilities(scores: Tensor, score: str) -> None:
    """Check that scores [N, K] suit an explicit `score`.

    Errors   BadOption
    """
    if score == "softmax" and scores.shape[-1] == 1:
        raise BadOption("score='softmax' is not valid for a single score, whose softmax is always 1. Give 'sigmoid'.")
    found = probabilities_of(scores, score)
    if score not in ("identity", "log") or found is None or not found.numel() or not found.isfinite().all():
        return
    if float(found.min()) < -ROUNDING or float(found.max()) > 1 + ROUNDING:
        what = "probabilities" if score == "identity" else "logarithms of probabilities"
        low, high = float(scores.min()), float(scores.max())
        raise BadOption(
            f"score={score!r} says that the network returns {what}, but its scores range from {low:.3g} to {high:.3g}. "
            "Give 'softmax' or 'sigmoid' for logits, or 'logit' for scores without probabilities."
        )


def probabilities_of(scores: Tensor, score: str | None = None) -> Tensor | None:
    """Return the probabilities [..., K] of scores [..., K], or None if `score` is "logit".

    `score` is as in `explain`; without it, several scores are logits of exclusive classes, and a single one of a label.

    Errors   WrongType, BadOption for another `score`

    Example
        >>> probabilities_of(torch.tensor([[0.0, 0.0]]))
        tensor([[0.5000, 0.5000]])
    """
    if not isinstance(scores, Tensor):
        raise wrong_type("scores", scores, "a tensor [..., K]")
    score = score or default_score(scores.shape[-1])
    if score == "softmax":
        return scores.softmax(-1)
    if score == "sigmoid":
        return scores.sigmoid()
    if score == "log":
        return scores.exp()
    check_score(score)
    return scores if score == "identity" else None


def log_probability_of(own: Tensor, scores: Tensor, score: str | None = None) -> Tensor:
    """Return the log-probability [N] of a class with the score `own` [N] among all `scores` [N, K].

    Errors   BadTarget if `score` is "logit"
    """
    score = score or default_score(scores.shape[-1])
    if score == "softmax":
        return own - scores.logsumexp(-1)
    if score == "sigmoid":
        return functional.logsigmoid(own)
    if score == "identity":
        return own.clamp(min=torch.finfo(own.dtype).tiny).log()
    if score == "log":
        return own
    raise no_probabilities()


def no_probabilities() -> BadTarget:
    """Return the error for a probability of scores that are not to be converted."""
    return BadTarget(
        "score='logit' says that the scores of this network are not probabilities or their logits. Give Logit(class), "
        "or another score: softmax, sigmoid or identity."
    )
