"""`intervene`: the scores of a model before and after a change of one layer's output, and `patch_effects`.

`patch_effects` is activation patching position by position: one cell after another comes from another image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from explainers.call.at_layer import activation_and_score, suffix_batches
from explainers.call.batch_size import max_tensor_count
from explainers.call.current import check_images
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.layers import layer_layout
from explainers.call.loop import Progress
from explainers.call.run import Run, open_run
from explainers.call.score_kind import score_kind
from explainers.call.scores import Edits, LayerLeaf, at_least_float32
from explainers.display.display import Display, Displayed, class_name, paragraphs, table_html
from explainers.dtypes import to_cpu_float64
from explainers.experiments.interventions.changes import (
    Change,
    Constant,
    Swap,
    as_function,
    chosen_channels,
    describe_change,
    position_numbers,
    select,
)
from explainers.hooks.edit import edit_outputs
from explainers.hooks.records import single_tensor
from explainers.layers.layout import LayerLayout
from explainers.nested import concatenate_outputs
from explainers.options import LayerName, check_keywords
from explainers.outputs import scores_in
from explainers.probabilities import check_score, probabilities_of
from explainers.targets import TargetLike, describe_target, evaluate, scores_of


class ClassChange(NamedTuple):
    """A class with its probabilities (or scores, if the network has no probabilities) before and after."""

    class_index: int
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Intervention(Displayed):
    """The scores of a model before and after a change of one layer, both [N, K], or [N, 1] for other outputs.

    `channels` are the changed channels of `layer`, `cells` the number of changed positions (None: all), `value` what
    was done, and `score` how scores become probabilities ("softmax", "sigmoid", "identity", "log", "logit").
    `target_before` and `target_after` [N] are the scores of the `target` (class indices or its repr), None without one.
    """

    layer: str
    channels: tuple[int, ...]
    cells: int | None
    value: str
    before: Tensor
    after: Tensor
    score: str
    edit: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    """The function for `edit_outputs` that makes the same change."""
    target: list[int] | str | None = None
    target_before: Tensor | None = None
    target_after: Tensor | None = None

    @property
    def change(self) -> Tensor:
        """The change of all scores, [N, K]."""
        return self.after - self.before

    def top(self, count: int = 5) -> list[list[ClassChange]]:
        """Return for each image the classes that are among the best `count` before or after, best before first."""
        scores = [to_cpu_float64(each) for each in (self.before, self.after)]
        shares = [probabilities_of(each, self.score) for each in scores]
        before, after = (each if share is None else share for each, share in zip(scores, shares, strict=True))
        count = min(count, before.shape[1])
        found = []
        for old, new in zip(before, after, strict=True):
            classes = dict.fromkeys([*old.topk(count).indices.tolist(), *new.topk(count).indices.tolist()])
            found.append([ClassChange(index, float(old[index]), float(new[index])) for index in classes])
        return found

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Apply the same change to all forward passes of the model inside the block, for example those of a method.

        Only passes of the thread that entered the block are changed.

        Example
            >>> result = intervene(model, images, "layer4", channels=[3, 17])
            >>> with result.applied(model):
            ...     changed = grad_cam(model, images, 281)
        """
        with edit_outputs(model, {self.layer: self.edit}):
            yield

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return the most likely classes before and after."""
        rows = [
            [image, class_name(each.class_index, labels), each.before, each.after, each.change]
            for image, changes in enumerate(self.top())
            for each in changes
        ]
        table = table_html(["image", "class", "before", "after", "change"], rows)
        return Display(paragraphs([repr(self)]) + table, repr(self))

    def __repr__(self) -> str:
        n = len(self.before)
        changed = int((self.before.argmax(1) != self.after.argmax(1)).sum())
        what = f"{len(self.channels)} channel{'s' * (len(self.channels) != 1)}"
        where = "" if self.cells is None else f" at {self.cells} position{'s' * (self.cells != 1)}"
        of_target = ""
        if self.target_before is not None and self.target_after is not None:
            lost = float((self.target_after - self.target_before).mean())
            of_target = f"change of the target's score {lost:.3g}" + (" on average" if n > 1 else "")
        largest = float(torch.linalg.vector_norm(self.change, float("inf")))
        of_classes = (
            f"top class changed in {changed} of {n} image{'s' * (n != 1)}, largest change of a score {largest:.3g}, "
            if self.before.shape[1] > 1 or not of_target
            else ""
        )
        return f"Intervention({self.layer}, {what}{where}, {self.value}: {(of_classes + of_target).removesuffix(', ')})"


@check_keywords
@torch.inference_mode(False)
def intervene(
    model: nn.Module,
    images: Tensor,
    layer: LayerName | None = None,
    target: TargetLike = None,
    *,
    channels: int | Sequence[int] | Tensor | None = None,
    cells: Tensor | Sequence[tuple[int, ...]] | None = None,
    value: Change = "zeros",
    forward: Forward | None = None,
    score: str | None = None,
) -> Intervention:
    """Change the output of one layer, for this call only, and return the scores before and after.

    `layer` is a name from `list_layers`, the module, or None for the default layer. `channels` are one or several
    channels, or None for all. `cells` are cells (row, column) of the layer's grid, a mask of the grid, or None for all
    positions, which includes class and register tokens. `value` says what happens to the selected values:

        "zeros"          removed
        number           replaced by the number
        "mean"           replaced by the channel's mean over all positions of the image
        Scale(factor)    multiplied                     Clamp(low, high)    limited to a range
        AddNoise(std)    Gaussian noise is added, in standard deviations of the selected values
        Swap(images)     replaced by those of other images (activation patching)
        tensor           replaced by the tensor, which broadcasts to [N, k, ...]
        function         from the selected channels [N, k, ...] to their new values

    `target` is a class, a `Target` or a function of the output, as in `explain`, whose score is reported too. If the
    output of the model is not [N, K], it is the only score, by default that of the largest class or best detection.

    `forward` and `score` are as in `explain`. `Intervention.applied` makes the same change in calls of methods.

    Returns  an `Intervention`: scores [N, K] before and after. It takes two forward passes, three for `Swap`
    Errors   BadOption for unknown channels or cells, no cells, or an invalid value; LayerNotFound, LayerRanRepeatedly,
             NoSpatialOutput, UnsupportedModel; BadTarget if the model has no scores for the target
    Source   Morcos et al. 2018 (removed channels), arXiv:1803.06959; Zhang & Nanda 2024 (activation patching),
             arXiv:2309.16042

    Example
        >>> result = intervene(model, images, "layer4", channels=[3, 17], value=0)
        >>> result.change.shape
        torch.Size([1, 1000])
    """
    check_images(model, images)
    check_score(score)
    function = None if isinstance(value, Swap) else as_function(value)
    model = model if forward is None else wrap_forward(model, forward, images)
    with open_run(model, images, target) as run:
        layout = layer_layout(run.view, run.images, layer, spatial=False, frames=True)
        output, clean = _record(run, layout, run.images)
        is_of_target = target is not None or not _has_classes(clean)
        target_before = at_least_float32(run.scoring.score(clean)) if is_of_target else None
        before = _scores(clean, target_before)
        selection = select(layout, output.shape, channels, cells)
        if isinstance(value, Swap):
            value.check(run.images)
            other, _ = _record(run, layout, value.images.detach().to(run.images))
            function = Constant(other.movedim(layout.channel_axis, 1)[:, list(selection.channels)])
        assert function is not None

        def edits(start: int, end: int) -> Edits:
            own = function.rows(start, end, output.ndim) if isinstance(function, Constant) else function
            return [(layout, selection.edit(own))]

        changed = concatenate_outputs(run.forward.edited(run.images, edits))
        chosen, target_after = run.scoring.target, None
        if is_of_target and chosen is not None:
            target_after = at_least_float32(evaluate(chosen, changed, len(images)))
        after = _scores(changed, target_after)
        kind = score_kind(run.view, run.images, before, score).score if _has_classes(clean) else "logit"
    positions = None if selection.mask is None else int(selection.mask.sum())
    what = layout.name, selection.channels, positions, describe_change(value)
    described = None if chosen is None else describe_target(chosen, len(images))
    return Intervention(*what, before, after, kind, selection.edit(function), described, target_before, target_after)


def _has_classes(output: Any) -> bool:
    scores = scores_in(output)
    return isinstance(scores, Tensor) and scores.ndim == 2


def _scores(output: Any, of_target: Tensor | None) -> Tensor:
    """Return the scores [N, K] of an output, or those of the target, [N, 1], if it has none.

    Errors   BadTarget without both
    """
    if of_target is not None and not _has_classes(output):
        return of_target[:, None]
    return at_least_float32(scores_of(output))


def _record(run: Run, layout: LayerLayout, images: Tensor) -> tuple[Tensor, Any]:
    """Return the output of a layer, at least float32, and that of the network, from one forward pass."""
    leaves: list[tuple[LayerLeaf, int]] = []

    def edits(start: int, end: int) -> Edits:
        leaf = LayerLeaf(layout)
        leaves.append((leaf, end - start))
        return [(layout, lambda output: leaf.outputs.append(single_tensor(layout.name, output).clone()))]

    output = concatenate_outputs(run.forward.edited(images, edits))
    return at_least_float32(torch.cat([leaf.single_output(count) for leaf, count in leaves])), output


@check_keywords
@torch.inference_mode(False)
def patch_effects(
    model: nn.Module,
    images: Tensor,
    others: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    channels: int | Sequence[int] | Tensor | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
    forward: Forward | None = None,
) -> Tensor:
    """Return the change of the score when one position of a layer is that of another image, for each position.

        y(A_ij = B_ij) - y

    `others` are one other image for all images, or one for each, in the size of the images. `channels` are those that
    are swapped, or None for all. `intervene(..., cells=[(i, j)], value=Swap(others))` swaps one position and returns
    all scores. `batch_size`, `progress`, `budget` and `forward` are as in the methods.

    Returns  (n, h, w) on the layer's own grid, in units of the target; negative where the other image lowers the
             score. If stopped early, the remaining positions are 0
    Errors   BadOption for images of another size or unknown channels; LayerNotFound, LayerRanRepeatedly,
             NoSpatialOutput, UnsupportedModel
    Source   Zhang & Nanda 2024 (activation patching), arXiv:2309.16042

    Example
        >>> patch_effects(model, images, images.flip(3), 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    check_images(model, images)
    Swap(others).check(images)
    cost = {"batch_size": batch_size, "progress": progress, "budget": budget}
    model = model if forward is None else wrap_forward(model, forward, images)
    with open_run(model, images, target, cost=cost) as run:
        loop = run.loop
        layout, activations, scores = activation_and_score(run, layer)
        axis = layout.channel_axis
        chosen = list(chosen_channels(channels, activations.shape[axis], layout.name))
        numbers = position_numbers(layout, activations.shape)
        swapped = run.forward.outputs(layout, others.detach().to(run.images))
        sources = swapped.expand_as(activations).movedim(axis, 1)[:, chosen].flatten(2)
        effects = at_least_float32(scores.new_zeros(len(scores), numbers.numel()))
        branches = suffix_batches(run, layout)

        def work(cells: range) -> None:
            at = numbers.flatten()[cells.start : cells.stop]
            for index, branch in enumerate(branches):

                def patch(copies: Tensor, source: Tensor = sources[index]) -> Tensor:
                    moved = copies.movedim(axis, 1)
                    flat = moved.flatten(2).clone()  # copy i gets the values of `source` at position `at[i]`
                    for row, position in enumerate(at.tolist()):
                        flat[row, chosen, position] = source[:, position].to(flat)
                    return flat.reshape(moved.shape).movedim(1, axis)

                effects[index, cells.start : cells.stop] = branch.values(patch, len(cells)) - scores[index]

        copy = activations[0].numel() * activations.element_size()
        largest = max_tensor_count(numbers.numel(), copy, activations.device)
        loop.run(numbers.numel(), loop.suffix_rows(largest=largest), work, lambda: effects.reshape(-1, *numbers.shape))
    return effects.reshape(-1, *numbers.shape)
