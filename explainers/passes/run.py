"""One call of a method, with the passes that all methods share; at_layer.py has those that start or end at a layer.

    run.forward            the network's output for a batch; `outputs` stops at a layer
    run.scoring.values     scores of many variants (perturbation methods)
    run.backward.gradient  one forward pass, one backward pass down to the input (input-gradient methods)
    run.backward.at        one forward pass, one backward pass down to layers, also for variants and replaced outputs

None of them modifies the model: see network/eval_view.py for the mode and hooks/ for the hooks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from explainers.findings import note_layer, recording_image
from explainers.hooks.cleanup import ordinary_tensors
from explainers.layers.layout import LayerLayout
from explainers.layers.lookup import layer_layout
from explainers.layers.score_kind import score_of_network
from explainers.nested import concatenate_outputs
from explainers.network.behavior import run_rows_correctly
from explainers.network.eval_view import EvalView, one_call
from explainers.network.forward_wrapper import ForwardWrapper
from explainers.network.rows.row_by_row import RowByRow
from explainers.options import LayerName
from explainers.passes.backward import BackwardPasses
from explainers.passes.batches.batch_size import estimate
from explainers.passes.each_image import BatchSplit
from explainers.passes.forward import ForwardPasses
from explainers.passes.loop import Loop
from explainers.passes.scoring import Scoring
from explainers.passes.through import ThroughLayer
from explainers.targets import TargetLike, Through, Unit, as_target

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

    def layer_layout(self, layer: LayerName | None, *, counted: bool = False, frames: bool = False) -> LayerLayout:
        """Return the layer's name and layout; None is the default layer. Set `counted` if the pass will stop there.

        Set `frames` to accept a layer that runs on single frames of a video, if the pass keeps all rows of the batch.
        """
        return layer_layout(self.view, self.images, layer, counted=counted, frames=frames)

    def use_layer(self, layout: LayerLayout) -> None:
        """Record the layer of the method's map, and where its cells lie."""
        note_layer(layout.name)
        self.view.placement = layout.placement

    def plan_suffix(self, layout: LayerLayout) -> None:
        """Choose batch sizes for variants of this layer's output."""
        if self.scoring.loop is not None and self.scoring.loop.batch_size is None:
            self.scoring.loop.plan(estimate(self.view, self.images, layout.name))

    def by_image(self, compute: Callable[[Run], T]) -> T:
        """Return `compute(run)`, concatenated from one run for each image if the network runs row by row.

        For passes that hook inner layers, which would otherwise see the images one after another in a single pass.
        """
        if len(self.images) == 1 or not self.forward.is_row_by_row:
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
    combines rows even for one image. `cost` has the keywords of a slow method, as in keywords.py; checks that run once
    per model do not use up its budget. `precision` is that of a run without them.
    """
    loop = None if cost is None else Loop(**cost)
    with ordinary_tensors(), torch.no_grad(), one_call(model) as view:
        requested = None if target is None else as_target(target, len(images))
        given, images = images, images.detach().clone() if copied else images.detach()
        start = time.monotonic()
        several = several or many or loop is not None or len(images) > 1
        run_rows_correctly(view, images, several)
        if view.decides and view.splits and len(images) > 1:
            raise BatchSplit
        if (many or loop is not None) and isinstance(view.network, ForwardWrapper):
            view.network.check_variants(images)
        if loop is not None:
            if isinstance(view.network, RowByRow) or getattr(view.network, "one_by_one", False):
                loop.one_by_one()
            if loop.batch_size is None:
                loop.plan(estimate(view, images))
            loop.extend_budget(time.monotonic() - start)
        # The layers of the target are looked up before any hook is set, since this may run the network.
        unit = through = None
        if isinstance(requested, Through):
            through = ThroughLayer(requested, layer_layout(view, images, requested.layer))
            requested = None if requested.target is None else as_target(requested.target)
        if requested is not None and requested.reads_probability:
            requested = requested.with_score(score_of_network(view, images))
        if isinstance(requested, Unit):
            unit = layer_layout(view, images, requested.layer, counted=True, spatial=False)
        forward = ForwardPasses(view, images, unit, through)
        scoring = Scoring(forward, requested, loop, many, precision if loop is None else loop.precision)
        yield Run(view, images, forward, scoring, BackwardPasses(forward, scoring, given, loop))
