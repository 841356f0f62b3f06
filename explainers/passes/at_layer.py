"""Partial passes through a network that start or end at a layer.

activations_and_gradients   one forward pass, one backward pass down to the layer (class-activation maps)
features                    a forward pass that stops at the layer
SuffixBatch                 run the layers up to the layer once, and the rest on many edited copies of its output
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from explainers.errors import BadTarget, ExplainerError, LayerRanRepeatedly, is_out_of_memory
from explainers.findings import note_finding, note_gradient
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.locate import find_hook_point
from explainers.hooks.records import ran_repeatedly
from explainers.layers.layout import LayerLayout
from explainers.layers.lookup import is_read, last_layer_with_patch_gradients
from explainers.nested import concatenate_outputs
from explainers.network.forward_wrapper import BatchSizeRefused, ForwardWrapper
from explainers.options import LayerName
from explainers.passes.leaf import LayerLeaf
from explainers.passes.loop import RetrySmaller, now
from explainers.passes.run import Run, open_run
from explainers.passes.tensors import maps_of, match_quantization, single_tensor
from explainers.targets import TargetLike

T = TypeVar("T")


def activations_and_gradients(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor]:
    """Return activations A of a layer and d score / dA, [N, K, h, w] at the layer's resolution, float32 or float64.

    Videos and volumes have maps [N, K, t, h, w].
    """
    (found,) = activations_and_gradients_of(model, images, [layer], target).values()
    return found.activations, found.gradients


class AtLayer(NamedTuple):
    """A layer, its activations and d score / d activations, [N, K, h, w]."""

    layout: LayerLayout
    activations: Tensor
    gradients: Tensor


def activations_and_gradients_of(
    model: nn.Module, images: Tensor, layers: Sequence[LayerName | None], target: TargetLike
) -> dict[str, AtLayer]:
    """Return activations A and gradients d score / dA of several layers, by layer name.

    If only the class token of a layer affects the score, its patches have zero gradient. The last earlier layer whose
    patches affect the score is used instead, and a finding reports it.
    """
    maps = {}
    with open_run(model, images, target, copied=False) as run:
        layouts = [run.layer_layout(layer, frames=True) for layer in layers]
        _, both = run.backward.scores_at(layouts, run.images)
        for requested in layouts:
            layout, (a, g) = requested, both[requested.name]
            if requested.layout == "tokens":
                layout, (a, g) = layer_before_token_only_gradient(run, requested, (a, g))
            maps[requested.name] = AtLayer(layout, maps_of(layout, a), maps_of(layout, g))
            note_gradient(maps[requested.name].gradients)
            if len(layouts) == 1:
                run.use_layer(layout)
    return maps


def features(model: nn.Module, images: Tensor, layer: LayerName | None) -> Tensor:
    """Return the layer's output as [N, K, h, w]; the forward pass stops there."""
    with open_run(model, images) as run:
        layout = run.layer_layout(layer, counted=True, frames=True)
        run.use_layer(layout)
        return maps_of(layout, run.forward.outputs(layout, run.images))


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

        def repeated() -> Tensor:
            expected, self.repeat = self.repeat, True
            if count > self.repeats and not expected:
                raise RetrySmaller(self.repeats)
            return self._scores(count, edit, count)

        return repeated() if self.repeat else retry_with_repeated_batch(lambda: self._scores(1, edit, count), repeated)

    def _scores(self, rows: int, edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
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
            return self.run.scoring.plain(self.run.scoring.score(output, [self.image_index] * count))


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

    if run.forward.is_row_by_row:
        output, activation = concatenate_outputs([run_and_keep(row) for row in run.images.split(1)])
    else:
        output, activation = run_and_keep(run.images)
    if run.scoring.loop is not None:
        run.scoring.loop.measure(run.images, start_time, layer_time)
        run.plan_suffix(layout)
    run.use_layer(layout)
    maps_of(layout, activation)
    return layout, activation, run.scoring.plain(run.scoring.score(output))


Both = tuple[Tensor, Tensor]
"""A layer's activations and gradients, in the layer's layout."""


def layer_with_patch_gradients(run: Run, layer: LayerName | None, *, frames: bool = False) -> LayerLayout:
    """Return the layer's layout, or that of an earlier layer if the layer's patches have no gradient.

    The check costs an extra pass only for layers after the last attention of a network with a class token. `frames` is
    as in `Run.layer_layout`.
    """
    requested = run.layer_layout(layer, frames=frames)
    if run.view.quantized or requested.layout != "tokens" or is_read(run.view, run.images, requested.name):
        return requested
    return layer_before_token_only_gradient(run, requested, run.backward.at([requested], run.images)[requested.name])[0]


def layer_before_token_only_gradient(run: Run, requested: LayerLayout, both: Both) -> tuple[LayerLayout, Both]:
    """Return the layer and its tensors, or those of the last earlier layer whose patches affect the score."""
    layout = requested
    while _has_token_only_gradient(layout, both[1]):
        name = last_layer_with_patch_gradients(run.view, run.images, layout.name)
        if name is None:
            break
        layout = run.layer_layout(name, frames=requested.frames > 1)
        both = run.backward.at([layout], run.images)[layout.name]
    if layout is not requested:
        note_finding(
            "token_only_gradient",
            f"After layer {requested.name!r} the score depends only on the class token, so the patches have no "
            f"gradient. The map uses {layout.name!r}, the last earlier layer whose patches affect the score.",
            {"layer": layout.name},
            asked=requested.name,
            layer=layout.name,
        )
    return layout, both


def _has_token_only_gradient(layout: LayerLayout, gradient: Tensor) -> bool:
    """Return whether the gradient is exactly zero on all patches, but not on the class and register tokens.

    A gradient that is zero everywhere does not count: then the score does not depend on any token.
    """
    return layout.layout == "tokens" and not bool(layout.to_maps(gradient).any()) and bool(gradient.any())
