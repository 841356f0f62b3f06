"""Second-order terms at a layer: the product of the score's Hessian and the activations, without the full Hessian."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from explainers.call.attention.operations import scaled_dot_product_attention
from explainers.call.batch_norm import guard_batch_norms
from explainers.call.run import Run, layer_with_patch_gradients, open_run
from explainers.call.scores import LayerLeaf, maps_of
from explainers.derived_targets import Through
from explainers.errors import BadTarget
from explainers.findings import note_gradient
from explainers.hooks.calls import replaced_outputs
from explainers.layers.layout import LayerLayout
from explainers.options import LayerName
from explainers.targets import TargetLike


def hessian_activations(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the activations A of a layer, G = ∂y/∂A, and H A with H = ∂²y/∂A², each [N, K, h, w].

    One backward pass from the score to the layer gives G; another one through that pass gives the Hessian-vector
    product H A.

    Errors   BadTarget for a target restricted to channels of another layer; errors of the layer
    """
    if isinstance(target, Through):
        raise BadTarget("through=(layer, channels) only supports first derivatives. Choose a method without a Hessian.")
    with open_run(model, images, target) as run:
        layout = layer_with_patch_gradients(run, layer, frames=True)
        a, g, h = (maps_of(layout, tensor) for tensor in run.by_image(partial(_two_gradients, layout)))
        note_gradient(g)
        run.use_layer(layout)
        return a, g, h


def _two_gradients(layout: LayerLayout, run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, G and H A, in the layer's layout."""
    leaf = LayerLeaf(layout)
    with torch.no_grad(), replaced_outputs(run.view.network, [(layout, leaf.hook)]), _PlainAttention():
        total = run.scoring.score(run.forward(run.images.clone())).sum()
        a = leaf.single_output(len(run.images))
        first = _gradient(total, a, create_graph=True) if total.requires_grad else None
        second = _gradient(first, a, a.detach()) if first is not None and first.requires_grad else None
    if first is None:
        run.backward.refuse_detached([layout])
    g, h = (torch.zeros_like(a) if each is None else each for each in (first, second))
    return a.detach(), g, h


def _gradient(
    value: Tensor, leaf: Tensor, vector: Tensor | None = None, *, create_graph: bool = False
) -> Tensor | None:
    guard_batch_norms(value)
    (gradient,) = torch.autograd.grad(value, leaf, vector, create_graph=create_graph, allow_unused=True)
    return gradient


class _PlainAttention(TorchFunctionMode):
    """Run attention as separate operations in this thread, since the fused kernel has no second derivative."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if func is F.multi_head_attention_forward and not keywords.get("need_weights", True):
            return func(*args, **{**keywords, "need_weights": True})[0], None
        if func is F.scaled_dot_product_attention:
            return scaled_dot_product_attention(*args, **keywords)
        return func(*args, **keywords)
