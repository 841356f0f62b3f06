"""Ways through a network that meet at a layer.

activations_and_gradients   one forward, one backward down to the layer (the class-activation maps)
features                    a forward that ends at the layer
SuffixBatch                 one prefix, many edited copies of the layer's output through the rest
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from explainers.errors import BadTarget, ExplainerError, LayerRanRepeatedly, is_out_of_memory
from explainers.findings import note_finding, note_gradient, note_layer
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.locate import find_hook_point
from explainers.hooks.records import ran_repeatedly
from explainers.layers.layout import LayerLayout
from explainers.layers.lookup import is_read, last_layer_with_patch_gradients, layer_layout
from explainers.network.forwarded import Forwarded
from explainers.options import LayerName
from explainers.passes.leaf import LayerLeaf, like, tensor_of
from explainers.passes.loop import Smaller, now
from explainers.passes.run import Run, at_least_float32, maps_of, open_run
from explainers.targets import TargetLike

T = TypeVar("T")


def activations_and_gradients(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor]:
    """Activations A of one layer and d score / dA, both [N, K, h, w] in the layer's own size, float32 or float64."""
    (both,) = activations_and_gradients_of(model, images, [layer], target).values()
    return both


def activations_and_gradients_of(
    model: nn.Module, images: Tensor, layers: Sequence[LayerName | None], target: TargetLike
) -> dict[str, tuple[Tensor, Tensor]]:
    """Activations A of several layers and gradients d score / dA, each [N, K, h, w], by layer name, by `Run.at`.

    Where only the class token of a layer is read, its patches have no gradient at all: the last layer before it whose
    patches affect the score stands in, and a finding says so.
    """
    maps = {}
    with open_run(model, images, target) as run:
        layouts = [layer_layout(run.view, run.images, layer) for layer in layers]
        _, both = run.scores_at(layouts, run.images)
        for asked in layouts:
            layout, (a, g) = asked, both[asked.name]
            if asked.layout == "tokens":
                layout, (a, g) = layer_before_token_only_gradient(run, asked, (a, g))
            maps[asked.name] = maps_of(layout, a), maps_of(layout, g)
            note_gradient(maps[asked.name][1])
            if len(layouts) == 1:
                note_layer(layout.name)
    return maps


def features(model: nn.Module, images: Tensor, layer: LayerName | None) -> Tensor:
    """The layer's output as [N, K, h, w]; the forward pass ends there."""
    with open_run(model, images) as run:
        where = run.layer_layout(layer, counted=True)
        note_layer(where.name)
        return maps_of(where, run.outputs(where, run.images))


def or_with_rows_repeated(one_row: Callable[[], T], repeated: Callable[[], T]) -> T:
    """`one_row()`, or `repeated()` where the rest of the network takes no other batch size than the images had.

    Out of memory is no such reason, for the repeated batch needs more of it; nor is a refusal of ours, but for a target
    that met another number of scores than it was fixed for.
    """
    try:
        return one_row()
    except (RuntimeError, ValueError, IndexError) as error:
        refused = isinstance(error, ExplainerError) and not isinstance(error, BadTarget)
        if refused or is_out_of_memory(error):
            raise
    return repeated()


@dataclass
class SuffixBatch:
    """Edited copies of one layer's output through the rest of the network, for one picture.

    The layers before run once for a whole batch of copies. Where the rest cannot take another batch size than the
    images had, the picture itself is repeated instead. Each row then costs a whole pass, so `Smaller` is raised where
    there are more than `repeats`.
    """

    run: Run
    picture: int
    layout: LayerLayout
    repeats: int = sys.maxsize
    repeat: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.run.network, Forwarded):
            self.run.network.check_variants(self.run.images)

    def values(self, edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        """Scores [count] of the copies that `edit` makes: it gets the output [count, ...] and returns it changed."""

        def repeated() -> Tensor:
            expected, self.repeat = self.repeat, True
            if count > self.repeats and not expected:
                raise Smaller(self.repeats)
            return self._scores(count, edit, count)

        return repeated() if self.repeat else or_with_rows_repeated(lambda: self._scores(1, edit, count), repeated)

    def _scores(self, rows: int, edit: Callable[[Tensor], Tensor], count: int) -> Tensor:
        calls = 0

        def branch(output: Any) -> Tensor:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise LayerRanRepeatedly(ran_repeatedly(self.layout.name, calls))
            values = tensor_of(self.layout.name, output)
            copies = values if rows == count else values.expand(count, *values.shape[1:])
            return like(output, edit(copies.clone()))

        batch = self.run.images[self.picture : self.picture + 1].expand(rows, -1, -1, -1).clone()
        network = self.run.fast_network(self.layout.name)
        running = network or self.run.network
        edited = replaced_outputs(running, [(find_hook_point(running, self.layout.name), branch)])
        with torch.no_grad(), self.run.autocast(), edited:
            return at_least_float32(self.run.score(self.run.forward(batch, network), [self.picture] * count))


def activation_and_score(run: Run, layer: LayerName | None) -> tuple[LayerLayout, Tensor, Tensor]:
    """The layer's layout, its output [N, ...] as it is, and the scores [N], from one forward pass."""
    run.refuse_through()
    leaf, device = LayerLeaf(run.layer_layout(layer)), run.images.device
    began = reached = now(device)

    def keep(output: Any) -> Tensor:
        nonlocal reached
        reached = now(device)
        leaf.outputs.append(tensor_of(leaf.layout.name, output))
        return like(output, leaf.outputs[-1].clone())

    with replaced_outputs(run.network, [(leaf.layout, keep)]):
        output = run.forward(run.images.clone())
    if run.loop is not None:
        run.loop.measure(run.images, began, reached)
    activation = leaf.single_output()
    note_layer(leaf.layout.name)
    maps_of(leaf.layout, activation)
    return leaf.layout, activation, at_least_float32(run.score(output))


Both = tuple[Tensor, Tensor]
"""A layer's activations and gradients, in its own layout."""


def layer_with_patch_gradients(run: Run, layer: LayerName | None) -> LayerLayout:
    """As `run.layer_layout`, for methods that take gradients there: the layer before, where the patches have none.

    Only behind the last attention, and where a class token stands before the patches, it costs a pass to look.
    """
    asked = run.layer_layout(layer)
    if run.view.quantized or asked.layout != "tokens" or is_read(run.view, run.images, asked.name):
        return asked
    return layer_before_token_only_gradient(run, asked, run.at([asked], run.images)[asked.name])[0]


def layer_before_token_only_gradient(run: Run, asked: LayerLayout, both: Both) -> tuple[LayerLayout, Both]:
    """The given layer and its tensors, or the last layer before it whose patches affect the score, and its tensors."""
    where = asked
    while _unread(where, both[1]):
        name = last_layer_with_patch_gradients(run.view, run.images, where.name)
        if name is None:
            break
        where = run.layer_layout(name)
        both = run.at([where], run.images)[where.name]
    if where is not asked:
        note_finding(
            "token_only_gradient",
            f"After layer {asked.name!r} only the class token is read, so its patches have no gradient. The map is "
            f"that of {where.name!r}, the last layer before it whose patches affect the score.",
            {"layer": where.name},
            asked=asked.name,
            layer=where.name,
        )
    return where, both


def _unread(where: LayerLayout, gradient: Tensor) -> bool:
    """Exactly zero on all patches, but not on the tokens beside them: a score of nothing is no unread patch."""
    return where.layout == "tokens" and not bool(where.to_maps(gradient).any()) and bool(gradient.any())
