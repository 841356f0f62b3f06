"""Checks of the autograd graph of scores without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadTarget, UnsupportedModel, shorten
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.records import single_tensor
from explainers.layers.layout import LayerLayout
from explainers.nested import map_tensors
from explainers.targets import Target

_FOLLOWS = 1e-4
"""Relative change of a score under noise above which the score depends on the changed tensor."""


def refuse_detached(
    network: nn.Module,
    images: Tensor,
    scores: Callable[[Tensor], Tensor],
    layouts: Sequence[LayerLayout],
    name: str = "the images",
) -> None:
    """Raise an error if noise added to the images, or to the outputs of `layouts` if given, changes the scores.

    Used for scores without a gradient: if noise does not change them, zero is the correct gradient. `scores` computes
    the scores of a batch, and `name` says in the message what the noise was added to.

    Errors   UnsupportedModel
    """

    def noisy(tensor: Tensor) -> Tensor:
        generator = torch.Generator(tensor.device).manual_seed(0)
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
        return tensor + noise * tensor.std(correction=0).clamp(min=1e-3)

    clean = scores(images.clone())
    if layouts:
        edits = [(layout, lambda output, name=layout.name: noisy(single_tensor(name, output))) for layout in layouts]
        with replaced_outputs(network, edits):
            changed = scores(images.clone())
    else:
        changed = scores(noisy(images))
    if not float((changed - clean).abs().max()) > _FOLLOWS * float(clean.abs().max()):
        return
    found = f"layer {layouts[0].name!r}" if layouts else name
    raise UnsupportedModel(
        f"The score depends on {found}, but its gradient does not reach there: the forward pass of this "
        f"{type(network).__name__} leaves the autograd graph (torch.no_grad(), detach(), .data, numpy, operations "
        "without a backward pass). Remove that from its forward pass, or use a gradient-free method such as occlusion, "
        "rise or ablation_cam."
    )


def refuse_target(target: Target, output: Any) -> None:
    """Raise an error if no gradient flows through the target.

    A score that does not depend on the explained tensor has no gradient either, but is allowed.

    Errors   BadTarget
    """
    leaves = 0

    def leaf(tensor: Tensor) -> Tensor:
        nonlocal leaves
        leaves += tensor.is_floating_point()
        return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor

    again = map_tensors(output, leaf)
    if leaves and not target(again).requires_grad:
        raise BadTarget(
            f"The target {shorten(target)} returns scores without a gradient: it detaches the model's output or does "
            "not use "
            "it. Remove detach, item, argmax and no_grad from the target, or use a gradient-free method such as "
            "occlusion or rise."
        )
