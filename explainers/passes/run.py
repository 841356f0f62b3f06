"""One call of a method, with the passes that all methods share; at_layer.py has those that start or end at a layer.

    run.forward            the network's output for a batch; `outputs` stops at a layer
    run.scoring.values     scores of many variants (perturbation methods)
    run.backward.gradient  one forward pass, one backward pass down to the input (input-gradient methods)
    run.backward.at        one forward pass, one backward pass down to layers, also for variants and replaced outputs

None of them modifies the model: see network/eval_view.py for the mode and hooks/ for the hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from explainers.hooks.cleanup import ordinary_tensors
from explainers.layers.layout import LayerLayout
from explainers.layers.lookup import layer_layout
from explainers.network.batch_norm import mixes_rows
from explainers.network.eval_view import EvalView, one_call
from explainers.network.forward_wrapper import ForwardWrapper
from explainers.options import LayerName
from explainers.passes.backward import BackwardPasses
from explainers.passes.forward import ForwardPasses
from explainers.passes.loop import Loop
from explainers.passes.scoring import Scoring
from explainers.passes.through import ThroughLayer
from explainers.targets import TargetLike, Through, Unit, as_target


@dataclass(frozen=True, eq=False)
class Run:
    """One call: the view of the model, a copy of the images, and the passes."""

    view: EvalView
    images: Tensor
    forward: ForwardPasses
    scoring: Scoring
    backward: BackwardPasses

    def layer_layout(self, layer: LayerName | None, *, counted: bool = False) -> LayerLayout:
        """Return the layer's name and layout; None is the default layer. Set `counted` if the pass will stop there."""
        return layer_layout(self.view, self.images, layer, counted=counted)


@contextmanager
def open_run(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    many: bool = False,
    precision: str = "float32",
    loop: Loop | None = None,
) -> Iterator[Run]:
    """Open a `Run` of the model on copies of the images; the caller's gradient mode is restored after the block.

    Set `many` if many variants will run. `precision` "bf16" runs them in bfloat16 if possible, "auto" only if it is
    also faster. `loop` is the loop of a slow method, created earlier.
    """
    with ordinary_tensors(), torch.no_grad(), one_call(model) as view:
        requested = None if target is None else as_target(target, len(images))
        given, images = images, images.detach().clone()
        if (many or loop is not None) and isinstance(view.network, ForwardWrapper):
            view.network.check_variants(images)
        if loop is not None and (getattr(view.network, "one_by_one", False) or mixes_rows(view.network)):
            loop.one_by_one()
        # The layers of the target are looked up before any hook is set, since this may run the network.
        unit = through = None
        if isinstance(requested, Through):
            through = ThroughLayer(requested, layer_layout(view, images, requested.layer))
            requested = None if requested.target is None else as_target(requested.target)
        if isinstance(requested, Unit):
            unit = layer_layout(view, images, requested.layer, counted=True, spatial=False)
        forward = ForwardPasses(view, images, unit, through)
        scoring = Scoring(forward, requested, loop, many, precision)
        yield Run(view, images, forward, scoring, BackwardPasses(forward, scoring, given, loop))
