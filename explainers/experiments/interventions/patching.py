"""Activation patching position by position: the change of the score when one cell comes from another image."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import Tensor, nn

from explainers.experiments.interventions.changes import Swap, chosen_channels, position_numbers
from explainers.hooks.cleanup import restores_state
from explainers.network.forward_wrapper import Forward, wrap_forward
from explainers.options import LayerName, check_keywords
from explainers.passes.at_layer import SuffixBatch, activation_and_score
from explainers.passes.batches.memory import max_tensor_count
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import open_run
from explainers.passes.tensors import at_least_float32
from explainers.registry import check_images
from explainers.targets import TargetLike


@check_keywords
@restores_state
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
    loop = Loop(batch_size, progress, budget)
    model = model if forward is None else wrap_forward(model, forward, images)
    with open_run(model, images, target, loop=loop) as run:
        layout, activations, scores = activation_and_score(run, layer)
        axis = layout.channel_axis
        chosen = list(chosen_channels(channels, activations.shape[axis], layout.name))
        numbers = position_numbers(layout, activations.shape)
        swapped = run.forward.outputs(layout, others.detach().to(run.images))
        sources = swapped.expand_as(activations).movedim(axis, 1)[:, chosen].flatten(2)
        effects = at_least_float32(scores.new_zeros(len(scores), numbers.numel()))
        repeats = loop.whole(loop.rows()) if loop.batch_size is None else sys.maxsize
        branches = [SuffixBatch(run, index, layout, repeats) for index in range(len(scores))]

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
