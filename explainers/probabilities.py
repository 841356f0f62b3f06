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

import torch
from torch import Tensor
from torch.nn import functional

from explainers.errors import BadOption, BadTarget, nearest, shorten

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
    """Convert the scores of all networks that run inside the block in this way; None changes nothing."""
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


def check_score(score: object) -> None:
    """Check the option `score`; None means that it is detected.

    Errors   BadOption
    """
    if score is not None and (not isinstance(score, str) or score not in SCORES):
        hint = nearest(str(score), SCORES)
        known = ", ".join(SCORES)
        raise BadOption(f"score={shorten(score)} is not valid. {hint}Choose one of {known}, or None to detect it.")


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
    """Return the probabilities [..., K] of scores [..., K], or None if `score` is "logit"."""
    score = score or default_score(scores.shape[-1])
    if score == "softmax":
        return scores.softmax(-1)
    if score == "sigmoid":
        return scores.sigmoid()
    if score == "log":
        return scores.exp()
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
