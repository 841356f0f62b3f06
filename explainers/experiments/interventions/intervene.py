"""`intervene`: the scores of a model before and after a change of one layer's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from explainers.experiments.interventions.changes import Change, Constant, Function, Swap, as_function, describe_change
from explainers.experiments.interventions.result import Intervention
from explainers.experiments.interventions.selection import Selection, select
from explainers.hooks.calls import replaced_outputs
from explainers.layers.layout import LayerLayout
from explainers.layers.lookup import layer_layout
from explainers.layers.score_kind import score_kind
from explainers.nested import concatenate_outputs
from explainers.network.eval_view import check_images
from explainers.network.forward_wrapper import Forward, wrap_forward
from explainers.options import LayerName, check_keywords
from explainers.outputs import scores_in
from explainers.passes.run import Run, open_run
from explainers.passes.scores import Edits, LayerLeaf, at_least_float32
from explainers.passes.tensors import match_quantization, single_tensor
from explainers.probabilities import check_score
from explainers.targets import TargetLike, describe_target, evaluate, scores_of


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
        changed = _change(run, selection, function, output.ndim)
        chosen, target_after = run.scoring.target, None
        if is_of_target and chosen is not None:
            target_after = at_least_float32(evaluate(chosen, changed, len(images)))
        after = _scores(changed, target_after)
        kind = score_kind(run.view, run.images, before, score).score if _has_classes(clean) else "logit"
    positions = None if selection.mask is None else int(selection.mask.sum())

    def edit(output: Tensor) -> Tensor:
        return match_quantization(output, selection.apply(function, single_tensor(layout.name, output)))

    return Intervention(
        layout.name,
        selection.channels,
        positions,
        describe_change(value),
        before,
        after,
        kind,
        edit,
        None if chosen is None else describe_target(chosen, len(images)),
        target_before,
        target_after,
    )


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
    leaves, counts = list[LayerLeaf](), list[int]()

    def keep(output: Any) -> None:
        leaves[-1].outputs.append(single_tensor(layout.name, output).clone())

    def edits(start: int, end: int) -> Edits:
        leaves.append(LayerLeaf(layout))
        counts.append(end - start)
        return [(layout, keep)]

    output = _outputs(run, images, edits)
    found = [leaf.single_output(count) for leaf, count in zip(leaves, counts, strict=True)]
    return at_least_float32(torch.cat(found)), output


def _outputs(run: Run, images: Tensor, edits: Callable[[int, int], Edits]) -> Any:
    """Return the output for the images; `edits(start, end)` are those of the pass of these images."""
    outputs, start = [], 0
    for batch in run.forward.batches(images):
        end = start + len(batch)
        with replaced_outputs(run.view.network, edits(start, end)):
            outputs.append(run.forward(batch.clone()))
        start = end
    return concatenate_outputs(outputs)


def _change(run: Run, selection: Selection, function: Function, axes: int) -> Any:
    """Return the output for the images after the change of a layer whose output has `axes` axes."""

    def edits(start: int, end: int) -> Edits:
        own = function.rows(start, end, axes) if isinstance(function, Constant) else function

        def edit(output: Any) -> Tensor:
            return match_quantization(output, selection.apply(own, single_tensor(selection.layout.name, output)))

        return [(selection.layout, edit)]

    return _outputs(run, run.images, edits)
