"""Explanations of some images of a batch as one of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from explainers.explanation.diagnosis import Evidence, statistics
from explainers.explanation.result import Explanation
from explainers.findings import Finding, scatter_rows
from explainers.network.image_check import first_broken_value
from explainers.placement import join_placements, spread_placements
from explainers.targets import TargetLike, as_target, describe_target

NO_CLASS = -1
"""The target of an image for which no class was chosen."""


def join_images(parts: list[Explanation], given: Mapping[str, Any]) -> Explanation:
    """Return the explanations of single images as that of their batch; `given` are the options of its call."""
    first = _with_options(parts[0], given)
    if len(parts) == 1:
        return first
    classes = [each for part in parts if isinstance(part.target, list) for each in part.target]
    of_images = [part.images for part in parts if part.images is not None]
    slowest = min(parts, key=lambda part: part.done / part.total)
    return replace(
        first,
        target=classes if len(classes) == len(parts) else first.target,
        map=torch.cat([part.map for part in parts]),
        raw=torch.cat([part.raw for part in parts]),
        scores=None if first.scores is None else torch.cat([part.scores for part in parts if part.scores is not None]),
        statistics=[each for part in parts for each in part.statistics],
        findings=[each for part in parts for each in part.findings],
        seconds=sum(part.seconds for part in parts),
        images=torch.cat(of_images) if of_images else None,
        placement=join_placements([part.placement for part in parts]),
        done=slowest.done,
        total=slowest.total,
    )


def add_missing(
    part: Explanation, images: Tensor, target: TargetLike, given: Mapping[str, Any], rows: Sequence[int]
) -> Explanation:
    """Return the explanation of the images at `rows` as that of all images: the maps of the others are NaN.

    A finding says for each of the others why it was left out. `given` are the options of the call with all images.
    """
    count = len(images)

    def spread(values: Sequence[Any], missing: Any) -> list[Any]:
        known = dict(zip(rows, values, strict=True))
        return [known.get(row, missing) for row in range(count)]

    map, raw = scatter_rows(part.map, rows, count), scatter_rows(part.raw, rows, count)
    first = next(row for row in range(count) if row not in rows)
    empty = Evidence(
        map=map[first].cpu(), signed=map[first].cpu(), raw=raw[first].cpu(), method=part.method, layer=part.layer
    )
    classes: Any = part.target
    if isinstance(classes, list):
        classes = spread(classes, NO_CLASS) if target is None else describe_target(as_target(target), count)
    findings = spread(part.findings, None)
    return replace(
        _with_options(part, given),
        target=classes,
        map=map,
        raw=raw,
        scores=None if part.scores is None else scatter_rows(part.scores, rows, count),
        statistics=spread(part.statistics, statistics(empty)),
        findings=[[_left_out(row, images[row])] if own is None else own for row, own in enumerate(findings)],
        images=images.detach(),
        placement=spread_placements(part.placement, rows, count),
    )


def add_missing_inputs(
    found: Explanation | tuple[Explanation, ...],
    inputs: tuple[Tensor, ...],
    target: TargetLike,
    given: Mapping[str, Any],
    rows: Sequence[int],
) -> Explanation | tuple[Explanation, ...]:
    """Return `add_missing` of the explanations of several inputs, or of that of a layer."""
    if isinstance(found, tuple):
        return tuple(add_missing(part, own, target, given, rows) for part, own in zip(found, inputs, strict=True))
    assert found.images is not None, "explain keeps the images"
    return add_missing(found, scatter_rows(found.images, rows, len(inputs[0])), target, given, rows)


def _with_options(part: Explanation, given: Mapping[str, Any]) -> Explanation:
    """Return the explanation with options as in the call of all images, of which it may have only some rows."""
    keywords = {name: given.get(name, value) for name, value in (part.keywords or {}).items()}
    return replace(
        part, keywords=keywords, options={name: given.get(name, value) for name, value in part.options.items()}
    )


def _left_out(row: int, image: Tensor) -> Finding:
    here = "NaN or infinity in another input" if bool(image.isfinite().all()) else first_broken_value(image)
    return Finding(
        "non_finite",
        f"Image {row} contains {here}, so it was left out, and its map is NaN. Check how it is loaded and normalized. "
        "The maps of the other images do not depend on it.",
        facts={"part": "image", "layer": None, "image": row},
    )
