"""Second derivatives at a layer: the Hessian of the score times the activations, without the Hessian."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from explainers.errors import BadTarget
from explainers.findings import note_gradient, note_layer
from explainers.hooks.edit import edit_outputs
from explainers.options import LayerName
from explainers.passes.at_layer import layer_with_patch_gradients
from explainers.passes.attention import attend
from explainers.passes.run import LayerLeaf, maps_of, open_run
from explainers.targets import TargetLike, Through


def curved_activations(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor, Tensor]:
    """Activations A of a layer, G = d score / dA, and H A with H = d²score / dA², each [N, K, h, w].

    The graph begins at the layer; one backward pass through it gives G, one through that pass gives H A.

    Errors   BadTarget for a target restricted to channels of another layer; those of the layer
    """
    if isinstance(target, Through):
        raise BadTarget("through=(layer, channels) restricts first derivatives only. Choose a method without Hessian.")
    with open_run(model, images, target) as run:
        layout = layer_with_patch_gradients(run, layer)
        leaf = LayerLeaf(layout)
        with torch.no_grad(), edit_outputs(run.network, {layout.name: leaf.hook}), _PlainAttention():
            total = run.score(run.forward(run.images.clone())).sum()
            a = leaf.single_output()
            g = h = torch.zeros_like(a)
            if total.requires_grad:
                g = _gradient(total, a, create_graph=True)
                h = _gradient(g, a, a.detach()) if g.requires_grad else h
        a, g, h = (maps_of(layout, each) for each in (a, g, h))
        note_gradient(g)
        note_layer(layout.name)
        return a, g, h


def _gradient(value: Tensor, leaf: Tensor, along: Tensor | None = None, *, create_graph: bool = False) -> Tensor:
    (found,) = torch.autograd.grad(value, leaf, along, create_graph=create_graph, allow_unused=True)
    return torch.zeros_like(leaf) if found is None else found


class _PlainAttention(TorchFunctionMode):
    """Attention in single steps, in this thread: the fused kernel has no second derivative."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is F.multi_head_attention_forward and not given.get("need_weights", True):
            return func(*args, **{**given, "need_weights": True})[0], None
        if func is F.scaled_dot_product_attention:
            return attend(lambda weights: weights, *args, **given)
        return func(*args, **given)
