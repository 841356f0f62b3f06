"""`intervene`: the scores of a model before and after a change of one layer's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from explainers.experiments.interventions.changes import Change, Constant, Function, Swap, as_function, describe_change
from explainers.experiments.interventions.result import Intervention
from explainers.experiments.interventions.selection import Selection, select
from explainers.hooks.cleanup import restores_state
from explainers.layers.layout import LayerLayout
from explainers.layers.lookup import layer_layout
from explainers.layers.score_kind import score_kind
from explainers.network.forward_wrapper import Forward, wrap_forward
from explainers.options import LayerName, check_keywords
from explainers.passes.forward import Edits
from explainers.passes.leaf import LayerLeaf
from explainers.passes.run import Run, open_run
from explainers.passes.tensors import at_least_float32, match_quantization, single_tensor
from explainers.probabilities import check_score
from explainers.registry import check_images


@check_keywords
@restores_state
def intervene(
    model: nn.Module,
    images: Tensor,
    layer: LayerName | None = None,
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

    `forward` and `score` are as in `explain`. `Intervention.applied` makes the same change in calls of methods.

    Returns  an `Intervention`: scores [N, K] before and after. It takes two forward passes, three for `Swap`
    Errors   BadOption for unknown channels or cells, no cells, or an invalid value; LayerNotFound, LayerRanRepeatedly,
             NoSpatialOutput, UnsupportedModel; BadTarget if the output of the model is not [N, K]
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
    with open_run(model, images) as run:
        layout = layer_layout(run.view, run.images, layer, spatial=False, frames=True)
        output, before = _record(run, layout, run.images)
        selection = select(layout, output.shape, channels, cells)
        if isinstance(value, Swap):
            value.check(run.images)
            other, _ = _record(run, layout, value.images.detach().to(run.images))
            function = Constant(other.movedim(layout.channel_axis, 1)[:, list(selection.channels)])
        assert function is not None
        after = _change(run, selection, function, output.ndim)
        kind = score_kind(run.view, run.images, before, score).score
    positions = None if selection.mask is None else int(selection.mask.sum())

    def edit(output: Tensor) -> Tensor:
        return match_quantization(output, selection.apply(function, single_tensor(layout.name, output)))

    return Intervention(layout.name, selection.channels, positions, describe_change(value), before, after, kind, edit)


def _record(run: Run, layout: LayerLayout, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of a layer, at least float32, and the scores of the images, from one forward pass."""
    leaves: list[LayerLeaf] = []

    def keep(output: Any) -> None:
        leaves[-1].outputs.append(single_tensor(layout.name, output).clone())

    def edits(start: int, end: int) -> Edits:
        leaves.append(LayerLeaf(layout))
        return [(layout, keep)]

    scores = run.forward.scores(images, edits)
    return at_least_float32(torch.cat([leaf.single_output() for leaf in leaves])), scores


def _change(run: Run, selection: Selection, function: Function, axes: int) -> Tensor:
    """Return the scores of the images after the change of a layer whose output has `axes` axes."""

    def edits(start: int, end: int) -> Edits:
        own = function.rows(start, end, axes) if isinstance(function, Constant) else function

        def edit(output: Any) -> Tensor:
            return match_quantization(output, selection.apply(own, single_tensor(selection.layout.name, output)))

        return [(selection.layout, edit)]

    return run.forward.scores(run.images, edits)
