"""One call of a method, with the passes that all methods share, also at layers; at_layer.py runs variants of a layer.

    run.forward            the network's output for a batch; `outputs` stops at a layer
    run.scoring.values     scores of many variants (perturbation methods)
    run.backward.gradient  one forward pass, one backward pass down to the input (input-gradient methods)
    run.backward.at        one forward pass, one backward pass down to layers, also for variants and replaced outputs

None of them modifies the model: see call/current.py for the mode and hooks/ for the hooks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from explainers.call.batch_size import estimate
from explainers.call.current import one_call
from explainers.call.each_image import BatchSplit
from explainers.call.forward_wrapper import ForwardWrapper
from explainers.call.gradients import BackwardPasses
from explainers.call.layers import is_read, last_layer_with_patch_gradients, layer_layout
from explainers.call.loop import Loop
from explainers.call.profile import look
from explainers.call.rows import run_rows_correctly
from explainers.call.score_kind import score_of_network
from explainers.call.scores import ForwardPasses, Scoring, maps_of
from explainers.call.through import ThroughLayer
from explainers.call.view import EvalView
from explainers.derived_targets import LayerTarget, Through
from explainers.findings import note_finding, note_gradient, note_layer, recording_image
from explainers.layers.layout import LayerLayout
from explainers.nested import concatenate_outputs
from explainers.options import LayerName
from explainers.targets import Logit, TargetLike, as_target

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Run:
    """One call: the view of the model, a copy of the images, and the passes."""

    view: EvalView
    images: Tensor
    forward: ForwardPasses
    scoring: Scoring
    backward: BackwardPasses

    @property
    def loop(self) -> Loop:
        """The loop of a slow method."""
        assert self.scoring.loop is not None, "a slow method gives its cost to open_run"
        return self.scoring.loop

    def layer_layout(self, layer: LayerName | None, *, frames: bool = False) -> LayerLayout:
        """Return the layer's name and layout; None is the default layer.

        Set `frames` to accept a layer that runs on single frames of a video, if the pass keeps all rows of the batch.
        """
        view = self.view
        if view.snapshot is not None and not view.decides and (layer is None or isinstance(layer, str)):
            known = view.snapshot.layouts.get((layer, self.images.shape[1:], True, frames))
            if known is not None:
                index, layout = known
                return replace(layout, module=view.listed[index])
        return layer_layout(view, self.images, layer, frames=frames)

    def use_layer(self, layout: LayerLayout) -> None:
        """Record the layer of the method's map, and where its cells lie."""
        note_layer(layout.name)
        self.view.placement = layout.placement

    def plan_suffix(self, layout: LayerLayout) -> None:
        """Choose batch sizes for variants of this layer's output."""
        if self.scoring.loop is not None and self.scoring.loop.batch_size is None:
            self.scoring.loop.estimate = estimate(self.view, self.images, layout.name)

    def by_image(self, compute: Callable[[Run], T]) -> T:
        """Return `compute(run)`, concatenated from one run for each image if the network runs row by row.

        For passes that hook inner layers, which would otherwise see the images one after another in a single pass.
        """
        if len(self.images) == 1 or not self.view.is_row_by_row:
            return compute(self)
        if self.scoring.target is None:
            self.scoring.score_inputs()
        parts = []
        for index in range(len(self.images)):
            with recording_image(index):
                parts.append(compute(self._of_image(index)))
        whole: T = concatenate_outputs(parts)
        return whole

    def _of_image(self, index: int) -> Run:
        assert self.scoring.target is not None, "score_inputs sets it"
        image, given = self.images[index : index + 1], self.backward.given[index : index + 1]
        forward = replace(self.forward, images=image)
        scoring = Scoring(
            forward, self.scoring.target.rows([index]), self.scoring.loop, precision=self.scoring.precision
        )
        return Run(self.view, image, forward, scoring, BackwardPasses(forward, scoring, given, self.scoring.loop))


@contextmanager
def open_run(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    many: bool = False,
    several: bool = False,
    copied: bool = True,
    precision: str = "float32",
    cost: Mapping[str, Any] | None = None,
) -> Iterator[Run]:
    """Open a `Run` of the model on copies of the images; the caller's gradient mode is restored after the block.

    With `copied=False`, which saves memory, the run has the caller's images, and its passes must copy what they give to
    the network, since a network may modify its input. Set `many` if many variants will run, `several` if a pass
    combines rows even for one image. `cost` has the keywords of a slow method, as in keywords.py, except that the
    method reads `layer` itself; checks that run once per model do not use up its budget. `precision` is that of a run
    without them.
    """
    loop = None
    if cost is not None:
        limits = dict(cost)
        limits.pop("layer", None)
        loop = Loop(**limits)
    with torch.no_grad(), one_call(model) as view:
        requested = None if target is None else as_target(target, len(images))
        given, images = images, images.detach().clone() if copied else images.detach()
        start = time.monotonic()
        several = several or many or loop is not None or len(images) > 1
        if (
            view.snapshot is None
            or (several, images.shape[1:], images.dtype, images.device) not in view.snapshot.ordinary
        ):
            run_rows_correctly(view, images, several, look(view))
        if view.decides and view.splits and len(images) > 1:
            raise BatchSplit
        if (many or loop is not None) and isinstance(view.network, ForwardWrapper):
            view.network.check_variants(images)
        if loop is not None:
            if view.is_row_by_row or getattr(view.network, "one_by_one", False):
                loop.one_by_one()
            if loop.batch_size is None:
                loop.estimate = estimate(view, images)
            loop.start += time.monotonic() - start  # checks that run once per model do not use up the budget
        # The layers of the target are looked up before any hook is set, since this may run the network.
        unit = through = None
        if isinstance(requested, Through):
            through = ThroughLayer(requested, layer_layout(view, images, requested.layer))
            requested = None if requested.target is None else as_target(requested.target)
        if requested is not None and not isinstance(requested, Logit) and requested.reads_probability:
            requested = requested.with_score(score_of_network(view, images))
        if isinstance(requested, LayerTarget):
            unit = layer_layout(view, images, requested.layer, spatial=False)
        forward = ForwardPasses(view, images, unit, through)
        scoring = Scoring(forward, requested, loop, many, precision if loop is None else loop.precision)
        yield Run(view, images, forward, scoring, BackwardPasses(forward, scoring, given, loop))


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
        layouts = list(map(partial(run.layer_layout, frames=True), layers))
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
        layout = run.layer_layout(layer, frames=True)
        run.use_layer(layout)
        return maps_of(layout, run.forward.outputs(layout, run.images))


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
