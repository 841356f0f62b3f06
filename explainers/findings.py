"""Findings about a map, and the record of what the passes of one call computed, used by `explain`."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.placement import Placements, join_placements, spread_placements
from explainers.targets import Target


@dataclass(frozen=True)
class Finding:
    """A warning about a map: `code`, a `sentence`, and `remedy`, the keyword arguments to change in the call.

    `facts` holds the values in the sentence by name (classes as indices), for callers that write their own message.

    Codes: "non_finite", "nothing_spatial", "saturated", "no_gradient", "nothing_positive", "flat", "unlikely_target",
    "unusual_size", "class_insensitive", "probability_scores", "unclear_scores", "rows_depend", "stochastic",
    "largest_class", "best_detection", "stopped_early", "decides_by_image", "transposed", "inactive_concept", and codes
    that individual methods define. If `remedy` is not empty, `explain(**{**the_same_call, **finding.remedy})` is likely
    to give a more useful map.
    """

    code: str
    sentence: str
    remedy: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Record:
    """Raw map, its placement, expected sum, scores, target, gradient norms, layer, options and findings of one call.

    `done` of `total` samples were computed; `stopped_by` is "budget", "progress", or empty if all of them were.
    `stability` [N] is the correlation of the maps of two halves of them.
    """

    raw: Tensor | None = None
    placement: Placements = None
    scores: Tensor | None = None
    target: Target | None = None
    target_scores: Tensor | None = None
    gradient_norms: Tensor | None = None
    promised_sums: Tensor | None = None
    stability: Tensor | None = None
    next_promise: Tensor | None = None
    layer: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    findings: list[tuple[int | None, Finding]] = field(default_factory=list)
    done: int = 0
    total: int = 0
    stopped_by: str = ""
    loops: int = 0
    """Loops that are running, one inside the other."""


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
def recording_image(index: int) -> Iterator[None]:
    """Record what the passes of one image compute, and add it to the surrounding record, image after image."""
    whole = _record.get()
    if whole is None:
        yield
        return
    with recording() as part:
        yield
    whole.gradient_norms = _append(whole.gradient_norms, part.gradient_norms, index)
    whole.next_promise = _append(whole.next_promise, part.next_promise, index)
    whole.stability = _append(whole.stability, part.stability, index)
    whole.layer = part.layer or whole.layer
    if index == 0 or part.done * whole.total < whole.done * part.total:  # of the image with the smallest share
        whole.done, whole.total, whole.stopped_by = part.done, part.total, part.stopped_by
    whole.findings += [(index if image == 0 else image, finding) for image, finding in part.findings]


def note_records(parts: Sequence[Record], target: Target | None) -> None:
    """Add the records of calls with one image each to the surrounding record, as those of a batch with this target."""
    whole = _record.get()
    if whole is None:
        return
    for name in ("scores", "target_scores", "gradient_norms", "promised_sums", "stability"):
        values = [getattr(part, name) for part in parts]
        setattr(whole, name, None if any(value is None for value in values) else torch.cat(values))
    raw = [part.raw for part in parts if part.raw is not None]
    whole.raw = torch.cat(raw) if len(raw) == len(parts) else None
    whole.target, whole.layer = target, parts[0].layer
    whole.placement = join_placements([part.placement for part in parts])
    whole.done, whole.total = sum(part.done for part in parts), sum(part.total for part in parts)
    whole.stopped_by = next((part.stopped_by for part in parts if part.stopped_by), "")
    for index, part in enumerate(parts):
        whole.options |= part.options
        whole.findings += [(index, finding) for _, finding in part.findings]


def note_rows(part: Record, rows: Sequence[int], count: int) -> None:
    """Add the record of a call with some of `count` images to the surrounding record; the others get NaN.

    What the surrounding record has from a pass of all images, such as their scores, is kept.
    """
    whole = _record.get()
    if whole is None:
        return
    for name in ("raw", "gradient_norms", "promised_sums"):
        value = getattr(part, name)
        setattr(whole, name, None if value is None else scatter_rows(value, rows, count))
    whole.layer, whole.placement = part.layer, spread_placements(part.placement, rows, count)
    whole.done, whole.total, whole.stopped_by = part.done, part.total, part.stopped_by
    whole.options |= part.options
    whole.findings = [(None if where is None else rows[where], finding) for where, finding in part.findings]


def scatter_rows(part: Tensor, rows: Sequence[int], count: int) -> Tensor:
    """Return a tensor of `count` rows with those of `part` at `rows`, and NaN in all others."""
    whole = part.new_full((count, *part.shape[1:]), torch.nan)
    whole[list(rows)] = part
    return whole


def _append(whole: Tensor | None, part: Tensor | None, index: int) -> Tensor | None:
    return part if part is None or whole is None or index == 0 else torch.cat([whole, part])


@contextmanager
def pause_recording() -> Iterator[None]:
    """Exclude what happens inside the block from the surrounding recording."""
    token = _record.set(None)
    try:
        yield
    finally:
        _record.reset(token)


def is_recording() -> bool:
    """Return whether a record is kept. Values that need an extra pass are computed only in this case."""
    return _record.get() is not None


def has_finding(code: str) -> bool:
    """Return whether a finding of this code is recorded already."""
    record = _record.get()
    return record is not None and any(finding.code == code for _, finding in record.findings)


def note_raw(raw: Tensor, placement: Placements = None) -> None:
    """Record the result before the final ReLU, and where its cells lie; of nested methods, the outermost does last."""
    record = _record.get()
    if record is not None:
        record.raw, record.placement = raw, placement
        record.promised_sums, record.next_promise = record.next_promise, None


def note_scores(scores: Tensor | None, target: Target, target_scores: Tensor) -> None:
    """Record the scores of the clean images; only the first call has an effect."""
    record = _record.get()
    if record is not None and record.target_scores is None:
        record.scores, record.target, record.target_scores = scores, target, target_scores


def note_gradient(gradient: Tensor) -> None:
    """Record the gradient norm of each image."""
    record = _record.get()
    if record is not None:
        record.gradient_norms = gradient.flatten(1).norm(dim=1)


def note_promised_sum(sums: Tensor) -> None:
    """Record the sum [N] that the method guarantees for its result, the next raw map to be recorded."""
    record = _record.get()
    if record is not None:
        record.next_promise = sums


def note_halves(first: Tensor, second: Tensor) -> None:
    """Record how well the maps [N, ...] of two halves of the samples agree: their correlation, NaN for a constant map.

    Noise of independent samples differs between the halves, so the correlation r says how much of a map is not noise:
    2r / (1 + r) of the variance of the map of all samples (Spearman 1910, Brown 1910).
    """
    record = _record.get()
    if record is not None:
        a, b = (each.detach().double().flatten(1) for each in (first, second))
        a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
        record.stability = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


@dataclass
class Counts:
    """How many samples of a loop were computed, of how many, and what stopped it."""

    done: int = 0
    total: int = 0
    stopped_by: str = ""


@contextmanager
def counting_samples() -> Iterator[Counts]:
    """Record the counts of a loop, which the block sets. A loop inside a sample of another loop does not count."""
    record, counts = _record.get(), Counts()
    if record is None:
        yield counts
        return
    record.loops += 1
    try:
        yield counts
        if record.loops == 1:
            record.done, record.total = record.done + counts.done, record.total + counts.total
            record.stopped_by = counts.stopped_by or record.stopped_by
    finally:
        record.loops -= 1


def note_layer(name: str) -> None:
    """Record the name of the layer."""
    record = _record.get()
    if record is not None:
        record.layer = name


def note_option(name: str, value: Any) -> None:
    """Record the value that the method chose for an option."""
    record = _record.get()
    if record is not None:
        record.options[name] = value


def note_finding(
    code: str, sentence: str, remedy: dict[str, Any] | None = None, image: int | None = None, **facts: Any
) -> None:
    """Record a finding of the method itself about one image (an index), or about all images if `image` is None."""
    record = _record.get()
    found = image, Finding(code, sentence, remedy or {}, facts)
    if record is not None and found not in record.findings:
        record.findings.append(found)


def note_images(code: str, where: Tensor, sentence: str, remedy: dict[str, Any] | None = None, **facts: Tensor) -> None:
    """Record a finding about each image for which `where` [N] is true.

    `sentence` is a template, filled with the image's own value of each of the facts [N].
    """
    for index in where.nonzero().flatten().tolist():
        own = {name: float(values[index]) for name, values in facts.items()}
        note_finding(code, sentence.format(**own), remedy, index, **own)
