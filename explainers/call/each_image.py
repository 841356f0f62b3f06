"""Run a method on the images of a batch one by one, for networks that decide by the image (layers/flow/decisions.py).

Their layers, and the positions of the layers' cells, may differ from image to image, so a batch is as many calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.forward_wrapper import ForwardWrapper
from explainers.call.loop import Partial, Progress
from explainers.derived_targets import Through
from explainers.errors import UnsupportedModel, errors_of
from explainers.findings import Record, note_records, note_rows, recording, scatter_rows
from explainers.nested import list_tensors
from explainers.placement import Placements, join_placements, spread_placements
from explainers.probe.generators import Generators
from explainers.targets import Logit, Target, TargetLike, as_target

_BY_IMAGE = {"baseline": 0, "low": 0, "high": 0, "masks": 0, "segments": 1}
"""Options that may be a tensor with one entry for each image, and how many dimensions fewer than the images it has."""


class BatchSplit(Exception):
    """Raised when a method starts that must run for each image of its batch separately (`EvalView.splits`)."""


def run_each_image(
    method: Callable[..., Tensor], images: Tensor, target: TargetLike, options: Mapping[str, Any], *, stacked: bool
) -> tuple[Tensor, Placements]:
    """Return the results of `method(image, target, **options)` for each image, concatenated, and their placement.

    With `stacked`, a tensor as `baseline` is a list of baselines for all images.

    Errors   UnsupportedModel if the results have different sizes, or are those of different layers
    """
    count = len(images)
    requested = None if target is None else as_target(target, count)
    end = None if options.get("budget") is None else time.monotonic() + options["budget"]
    progress = _Progress(options.get("progress"), count)
    results: list[Tensor] = []
    records: list[Record] = []
    for index, image in enumerate(images.split(1)):
        own = {name: option_of_images(name, value, [index], images, stacked) for name, value in options.items()}
        if end is not None:
            own["budget"] = max((end - time.monotonic()) / (count - index), 1e-3)
        if progress.function is not None:
            own["progress"] = progress.of_image(index)
        with recording() as record, errors_of(f"Image {index} of the batch" if count > 1 else ""):
            results.append(method(image, None if requested is None else target_of_images(requested, [index]), **own))
        records.append(record)
        _refuse_differences(results, records)
    note_records(records, _joined_target(records, requested))
    return torch.cat(results), join_placements([record.placement for record in records])


def target_of_images(target: Target, indices: Sequence[int]) -> Target:
    """Return the target of some of the images."""
    if not isinstance(target, Through):
        return target.rows(indices)
    inner = None if target.target is None else as_target(target.target).rows(indices)
    return Through(inner, target.layer, target.channels)


def option_of_images(name: str, value: Any, indices: list[int], images: Tensor, stacked: bool) -> Any:
    """Return the part of an option's value that belongs to some of the images."""
    if not isinstance(value, Tensor) or name not in _BY_IMAGE or (name == "baseline" and stacked):
        return value
    is_labels = name == "masks" and not (value.is_floating_point() or value.dtype == torch.bool)
    dimensions = images.ndim - max(_BY_IMAGE[name], is_labels)
    return value[indices] if value.ndim == dimensions and len(value) == len(images) else value


def finite_rows(tensors: Sequence[Tensor]) -> list[int] | None:
    """Return the rows without NaN and infinity in any of the tensors; None if these are all rows, or there are none."""
    finite = [each.isfinite().reshape(len(each), -1).all(1).tolist() for each in tensors]
    rows = [row for row, values in enumerate(zip(*finite, strict=True)) if all(values)]
    return rows if finite and 0 < len(rows) < len(finite[0]) else None


def finite_outputs(model: nn.Module, network: nn.Module, images: Tensor) -> list[int] | None:
    """Return the images whose output is finite, after a failed call; None if that does not explain the error."""
    if len(images) < 2 or _is_run_by_user(model):
        return None
    try:
        with torch.no_grad(), Generators(network, images.device).restored():
            outputs = list_tensors(network(images.detach().clone()))
    except Exception:
        return None
    return finite_rows([each for each in outputs if each.ndim and len(each) == len(images)])


def finite_images(model: nn.Module, images: Any) -> list[int] | None:
    """Return the images without NaN and infinity if there are others; None if all are alike, or if they are not
    images."""
    if not isinstance(images, Tensor) or images.ndim < 2 or len(images) < 2:
        return None
    if not is_dense_batch(images) or _is_run_by_user(model):
        return None
    return None if math.isfinite(float(images.detach().sum())) else finite_rows([images.detach()])


def is_dense_batch(images: Any) -> bool:
    """Return whether something is a tensor of floats with rows."""
    is_dense = isinstance(images, Tensor) and images.layout == torch.strided and not images.is_meta
    return is_dense and images.ndim > 1 and images.is_floating_point()


def _is_run_by_user(model: nn.Module) -> bool:
    """Return whether a function of the user runs the model, whose other inputs may have one row for each image."""
    return isinstance(model, ForwardWrapper) and not model.runs_own_forward


def select_rows(
    images: Tensor, target: TargetLike, options: Mapping[str, Any], rows: list[int], *, stacked: bool
) -> tuple[Tensor, Target | None, dict[str, Any]]:
    """Return images, target and options of a call with some of its images.

    Errors   BadTarget, WrongType
    """
    requested = None if target is None else as_target(target, len(images))
    own = {name: option_of_images(name, value, rows, images, stacked) for name, value in options.items()}
    if callable(own.get("progress")):
        own["progress"] = progress_of_all(own["progress"], rows, len(images))
    return images[rows], None if requested is None else target_of_images(requested, rows), own


def progress_of_all(progress: Progress, rows: list[int], count: int) -> Progress:
    """Return a function for the progress of some of the images, by which `progress` gets maps of all, NaN for the
    others.
    """

    def report(partial: Partial) -> Any:
        if partial.map is None:
            return progress(partial)
        where = spread_placements(partial.placement, rows, count)
        return progress(replace(partial, map=scatter_rows(partial.map, rows, count), placement=where))

    return report


def run_some_images(
    method: Callable[..., Tensor],
    images: Tensor,
    target: TargetLike,
    options: Mapping[str, Any],
    rows: list[int],
    *,
    stacked: bool,
) -> Tensor:
    """Return the results of `method(images, target, **options)` for some of the images, and NaN for the others."""
    kept, own_target, own = select_rows(images, target, options, rows, stacked=stacked)
    with recording() as record:
        result = method(kept, own_target, **own)
    note_rows(record, rows, len(images))
    return scatter_rows(result, rows, len(images))


def _refuse_differences(results: list[Tensor], records: list[Record]) -> None:
    reason = ""
    if records[-1].layer != records[0].layer:
        reason = f"the layer of the first image is {records[0].layer!r}, that of another one {records[-1].layer!r}"
    elif results[-1].shape != results[0].shape:
        sizes = " and ".join(str(tuple(each.shape[1:])) for each in (results[0], results[-1]))
        reason = f"the results of two images have the sizes {sizes}"
    if reason:
        raise UnsupportedModel(
            f"The images cannot be explained together: the network decides by the image, and {reason}. Explain one "
            "image at a time, or give a layer that runs for each of them in the same size."
        )


def _joined_target(records: list[Record], requested: Target | None) -> Target | None:
    targets = [record.target for record in records]
    if all(isinstance(target, Logit) for target in targets):
        classes = [target.classes for target in targets if isinstance(target, Logit)]
        return Logit([each if isinstance(each, int) else each[0] for each in classes])
    return requested or targets[0]


class _Progress:
    """The caller's `function` for progress, which gets the maps of all images; those that are not done yet are 0."""

    def __init__(self, function: Callable[[Partial], Any] | None, count: int) -> None:
        self.function, self.count = function, count
        self.is_stopped = False
        self.maps: list[Tensor | None] = [None] * count
        self.placements: list[Placements] = [None] * count

    def of_image(self, index: int) -> Callable[[Partial], Any]:
        """Return the function for an image; once the caller has stopped, each image stops after its first chunk."""

        def report(partial: Partial) -> Any:
            if self.is_stopped or self.function is None:
                return False
            self.maps[index] = own = partial.map
            whole = None
            if own is not None:
                whole = torch.cat([torch.zeros_like(own) if each is None else each for each in self.maps])
            self.placements[index:] = [partial.placement] * (self.count - index)
            done, total = index * partial.total + partial.done, self.count * partial.total
            fraction = (index + partial.fraction) / self.count
            where = join_placements(self.placements)
            shown = replace(partial, fraction=fraction, map=whole, done=done, total=total, placement=where)
            self.is_stopped = self.function(shown) is False
            return not self.is_stopped

        return report
