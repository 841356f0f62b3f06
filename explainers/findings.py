"""What a method has to say of a map, and what the passes of one call saw on their way, for `explain`."""

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
    """Something the reader of a map must know: `code`, a `sentence`, and `remedy`, keywords to change in the same call.

    Codes: "non_finite", "nothing_spatial", "saturated", "no_gradient", "nothing_positive", "flat", "unlikely_target",
    "unusual_size", "class_insensitive", and those that methods give themselves. A remedy may be empty; else
    `explain(**{**the_same_call, **finding.remedy})` is the better question.
    """

    code: str
    sentence: str
    remedy: dict[str, Any] = field(default_factory=dict)


@dataclass
class Record:
    """Scores, target, gradient norms and layer of one call, options as they were chosen, and what its method had to
    say.
    """

    raw: Tensor | None = None
    scores: Tensor | None = None
    target: Target | None = None
    target_scores: Tensor | None = None
    gradient_norms: Tensor | None = None
    layer: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    findings: list[tuple[int | None, Finding]] = field(default_factory=list)


_record: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record", default=None)


@contextmanager
def recording() -> Iterator[Record]:
    """Collect what the passes inside the block see."""
    record = Record()
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Nothing inside the block is seen by the recording around it."""
    token = _record.set(None)
    try:
        yield
    finally:
        _record.reset(token)


def is_recording() -> bool:
    """Whether anybody reads what is noted: figures that cost a pass are then worth it."""
    return _record.get() is not None


def note_raw(raw: Tensor) -> None:
    """Remember the method's result before its final ReLU; of methods made of others, the outermost's comes last."""
    record = _record.get()
    if record is not None:
        record.raw = raw


def note_scores(scores: Tensor | None, target: Target, target_scores: Tensor) -> None:
    """Remember the first scores of the clean pictures."""
    record = _record.get()
    if record is not None and record.target_scores is None:
        record.scores, record.target, record.target_scores = scores, target, target_scores


def note_gradient(gradient: Tensor) -> None:
    """Remember the gradient's norm for each picture."""
    record = _record.get()
    if record is not None:
        record.gradient_norms = gradient.flatten(1).norm(dim=1)


def note_layer(name: str) -> None:
    """Remember which layer was read."""
    record = _record.get()
    if record is not None:
        record.layer = name


def note_option(name: str, value: Any) -> None:
    """Remember what an option that leaves the choice to the method came to."""
    record = _record.get()
    if record is not None:
        record.options[name] = value


def note_finding(code: str, sentence: str, remedy: dict[str, Any] | None = None, picture: int | None = None) -> None:
    """Tell the reader of the map something that only the method knows; `picture` None means all of them."""
    record = _record.get()
    if record is not None:
        record.findings.append((picture, Finding(code, sentence, remedy or {})))
