"""Findings about a map, and the record of what the passes of one call computed, for `explain`."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from explainers.targets import Target


@dataclass(frozen=True)
class Finding:
    """A fact that the reader of a map must know: `code`, a `sentence`, and `remedy`, keywords to change in the call.

    `facts` are the figures of the sentence by name (classes as indices), for who says it in words of their own.

    Codes: "non_finite", "nothing_spatial", "saturated", "no_gradient", "nothing_positive", "flat", "unlikely_target",
    "unusual_size", "class_insensitive", and those that methods give themselves. A remedy may be empty; else
    `explain(**{**the_same_call, **finding.remedy})` is the better question.
    """

    code: str
    sentence: str
    remedy: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Record:
    """Raw map, what it should sum to, scores, target, gradient norms, layer, options and findings of one call."""

    raw: Tensor | None = None
    scores: Tensor | None = None
    target: Target | None = None
    target_scores: Tensor | None = None
    gradient_norms: Tensor | None = None
    promised_sums: Tensor | None = None
    next_promise: Tensor | None = None
    layer: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    findings: list[tuple[int | None, Finding]] = field(default_factory=list)


_record: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record", default=None)


@contextmanager
def recording() -> Iterator[Record]:
    """Record what the passes inside the block compute."""
    record = Record()
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """The recording around the block does not record what happens inside it."""
    token = _record.set(None)
    try:
        yield
    finally:
        _record.reset(token)


def is_recording() -> bool:
    """Whether somebody reads the record: figures that cost a pass are computed only then."""
    return _record.get() is not None


def note_raw(raw: Tensor) -> None:
    """Record the result before the final ReLU; where methods are nested, the outermost records last."""
    record = _record.get()
    if record is not None:
        record.raw, record.promised_sums, record.next_promise = raw, record.next_promise, None


def note_scores(scores: Tensor | None, target: Target, target_scores: Tensor) -> None:
    """Record the first scores of the clean images."""
    record = _record.get()
    if record is not None and record.target_scores is None:
        record.scores, record.target, record.target_scores = scores, target, target_scores


def note_gradient(gradient: Tensor) -> None:
    """Record the gradient's norm for each image."""
    record = _record.get()
    if record is not None:
        record.gradient_norms = gradient.flatten(1).norm(dim=1)


def note_promised_sum(sums: Tensor) -> None:
    """Record what the method promises that its result, the next raw one, sums to for each image, [N]."""
    record = _record.get()
    if record is not None:
        record.next_promise = sums


def note_layer(name: str) -> None:
    """Record the layer that was explained."""
    record = _record.get()
    if record is not None:
        record.layer = name


def note_option(name: str, value: Any) -> None:
    """Record the value that the method chose for an option."""
    record = _record.get()
    if record is not None:
        record.options[name] = value


def note_finding(
    code: str, sentence: str, remedy: dict[str, Any] | None = None, picture: int | None = None, **facts: Any
) -> None:
    """Record a finding that only the method can know; `picture` None means all images."""
    record = _record.get()
    if record is not None:
        record.findings.append((picture, Finding(code, sentence, remedy or {}, facts)))
