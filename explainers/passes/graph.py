"""What the graph of a pass leaves out: what a score follows without a gradient, and ways around a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadTarget, UnsupportedModel
from explainers.findings import note_finding
from explainers.hooks.calls import replaced_outputs
from explainers.hooks.records import map_tensors
from explainers.layers.layout import LayerLayout
from explainers.passes.leaf import tensor_of
from explainers.targets import Target

_FOLLOWS = 1e-4
"""Relative change of a score under noise from which on it follows what was changed."""


def refuse_detached(
    network: nn.Module, images: Tensor, scores: Callable[[Tensor], Tensor], layouts: Sequence[LayerLayout]
) -> None:
    """Refuse where noise in the images, or in the outputs of the layers where some are given, changes the scores.

    For scores without a gradient: where they stay the same, zero is the right gradient. `scores` gives those of a
    batch.

    Errors   UnsupportedModel
    """

    def noisy(tensor: Tensor) -> Tensor:
        generator = torch.Generator(tensor.device).manual_seed(0)
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
        return tensor + noise * tensor.std(correction=0).clamp(min=1e-3)

    clean = scores(images.clone())
    if layouts:
        edits = [(layout, lambda output, name=layout.name: noisy(tensor_of(name, output))) for layout in layouts]
        with replaced_outputs(network, edits):
            changed = scores(images.clone())
    else:
        changed = scores(noisy(images))
    if not float((changed - clean).abs().max()) > _FOLLOWS * float(clean.abs().max()):
        return
    found = f"layer {layouts[0].name!r}" if layouts else "the images"
    raise UnsupportedModel(
        f"The score follows {found}, yet no gradient of it gets there: this {type(network).__name__} cuts values out "
        "of the graph (torch.no_grad(), detach(), .data, numpy, operations without a backward pass). Take that out of "
        "its forward pass, or use a method without gradients, such as occlusion, rise or ablation_cam."
    )


def refuse_target(target: Target, output: Any) -> None:
    """Refuse a target through which no gradient flows; a score of what is not explained has none either, and may.

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
            f"The target {target!r} gives scores without a gradient: it detaches, or does not read the model's output. "
            "Leave out detach, item, argmax and no_grad in it, or choose a method without gradients, such as occlusion "
            "or rise."
        )


def note_bypass(total: Tensor, passed: Tensor, output_gradient: Tensor, leaves: Sequence[Tensor], layer: str) -> None:
    """Record how much of the gradient bypasses `layer`, whose output is `passed`."""
    whole = torch.autograd.grad(total, leaves, retain_graph=True, materialize_grads=True)
    inside = torch.autograd.grad(passed, leaves, output_gradient, retain_graph=True, materialize_grads=True)
    for a, b in zip(whole, inside, strict=True):
        size, around = float(a.norm()), float((a - b).norm())
        share = around / size if size else 0.0
        if share > 1e-4:
            note_finding(
                "bypass",
                f"Not every path passes layer {layer!r}: {share:.0%} of the gradient goes around it and is in no "
                "channel's map.",
                layer=layer,
                share=share,
            )
