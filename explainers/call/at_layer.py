"""Run the layers up to a layer once, and the rest of the network on many edited copies of its output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from explainers.call.forward_wrapper import BatchSizeRefused, ForwardWrapper
from explainers.call.loop import RetrySmaller, now
from explainers.call.run import Run
from explainers.call.scores import LayerLeaf, maps_of
from explainers.errors import BadTarget, ExplainerError, LayerRanRepeatedly, is_out_of_memory
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.locate import find_hook_point
from explainers.hooks.records import match_quantization, ran_repeatedly, single_tensor
from explainers.layers.layout import LayerLayout
from explainers.nested import concatenate_outputs
from explainers.options import LayerName
from explainers.targets import scores_of

T = TypeVar("T")


def retry_with_repeated_batch(one_row: Callable[[], T], repeated: Callable[[], T]) -> T:
    """Return `one_row()`, or `repeated()` if the rest of the network only accepts the original batch size.

    Out-of-memory errors are raised, since the repeated batch needs even more memory. So are this library's own errors,
    except for `BadTarget`, which also occurs if the target receives a different number of scores than it was resolved
    for, and `BatchSizeRefused`, which any error of a `forward=` with fewer rows than images becomes.
    """
    try:
        return one_row()
    except (RuntimeError, ValueError, IndexError) as error:
        refused = isinstance(error, ExplainerError) and not isinstance(error, (BadTarget, BatchSizeRefused))
        if refused or is_out_of_memory(error):
            raise
    return repeated()


@dataclass
class SuffixBatch:
    """Run edited copies of one layer's output through the rest of the network, for one image.

    The earlier layers run once for a whole batch of copies. If the rest of the network only accepts the original batch
    size, the image itself is repeated instead. Each row then costs a full pass, so `RetrySmaller` is raised if the
    batch has more than `repeats` rows.
    """

    run: Run
    image_index: int
    layout: LayerLayout
    repeats: int = sys.maxsize
    repeat: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.run.view.network, ForwardWrapper):
            self.run.view.network.check_variants(self.run.images)

    def values(self, edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        """Return the scores [count] of edited copies; `edit` maps the output [count, ...] to the edited output."""
        scoring = self.run.scoring
        return self._read(lambda output: scoring.score(output, [self.image_index] * count), edit, count)

    def class_scores(self, edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        """Return the scores of all classes [count, K] of edited copies, as `values` does for the target."""
        return self._read(scores_of, edit, count)

    def _read(self, read: Callable[[Any], Tensor], edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        def repeated() -> Tensor:
            expected, self.repeat = self.repeat, True
            if count > self.repeats and not expected:
                raise RetrySmaller(self.repeats)
            return self._scores(count, read, edit, count)

        if self.repeat:
            return repeated()
        return retry_with_repeated_batch(lambda: self._scores(1, read, edit, count), repeated)

    def _scores(self, rows: int, read: Callable[[Any], Tensor], edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        calls = 0

        def branch(output: Any) -> Tensor:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise LayerRanRepeatedly(ran_repeatedly(self.layout.name, calls))
            values = single_tensor(self.layout.name, output)
            copies = values if rows == count else values.expand(count, *values.shape[1:])
            return match_quantization(output, edit(copies.clone()))

        image = self.run.images[self.image_index : self.image_index + 1]
        batch = image.expand(rows, *image.shape[1:]).clone()
        network = self.run.scoring.fast_network(self.layout.name)
        running = network or self.run.view.network
        edited = replaced_outputs(running, [(find_hook_point(running, self.layout.name), branch)])
        with torch.no_grad(), self.run.scoring.autocast(), edited:
            output = self.run.forward(batch, network)
            return self.run.scoring.plain(read(output))


def suffix_batches(run: Run, layout: LayerLayout) -> list[SuffixBatch]:
    """Return one batch for each image, whose repeated images are as many as the rows of a whole pass."""
    loop = run.loop
    repeats = loop.whole(loop.rows()) if loop.batch_size is None else sys.maxsize
    return [SuffixBatch(run, index, layout, repeats) for index in range(len(run.images))]


def activation_and_score(run: Run, layer: LayerName | None) -> tuple[LayerLayout, Tensor, Tensor]:
    """Return the layer's layout, its unchanged output [N, ...] and the scores [N], from one forward pass."""
    run.forward.refuse_through()
    layout, device = run.layer_layout(layer), run.images.device
    start_time = layer_time = now(device)

    def run_and_keep(batch: Tensor) -> tuple[Any, Tensor]:
        leaf = LayerLeaf(layout)

        def keep(output: Any) -> Tensor:
            nonlocal layer_time
            layer_time = now(device)
            leaf.outputs.append(single_tensor(layout.name, output))
            return match_quantization(output, leaf.outputs[-1].clone())

        with replaced_outputs(run.view.network, [(layout, keep)]):
            output = run.forward(batch.clone())
        return output, leaf.single_output(len(batch))

    if run.view.is_row_by_row:
        output, activation = concatenate_outputs([run_and_keep(row) for row in run.images.split(1)])
    else:
        output, activation = run_and_keep(run.images)
    if run.scoring.loop is not None:
        run.scoring.loop.measure(run.images, start_time, layer_time)
        run.plan_suffix(layout)
    run.use_layer(layout)
    maps_of(layout, activation)
    return layout, activation, run.scoring.plain(run.scoring.score(output))
