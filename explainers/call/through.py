"""Gradients that flow only through chosen channels of a layer, for a `Through` target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.derived_targets import Through
from explainers.errors import BadTarget, shorten
from explainers.findings import is_recording, note_finding
from explainers.hooks.records import single_tensor
from explainers.layers.layout import LayerLayout


@dataclass(eq=False)
class ThroughLayer:
    """The layer of a `Through` target. Its outputs in the last forward pass are where gradients are restricted.

    There is one output, or one for each row if the network runs row by row.
    """

    target: Through
    layout: LayerLayout
    _outputs: list[Tensor] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Forget the outputs of the previous forward pass."""
        self._outputs = []

    def record(self, output: Any) -> Tensor:
        """Record the layer's output, and return a clone of it for the following layers."""
        tensor = single_tensor("of through=(layer, channels)", output)
        if tensor.requires_grad:
            # A module may return its input (Dropout in eval mode); the view receives only the gradient of this output.
            tensor = tensor.view_as(tensor)
        self._outputs.append(tensor)
        return tensor.clone()

    def gradients(self, total: Tensor, leaves: Sequence[Tensor], *, note_bypass: bool) -> list[Tensor]:
        """Return the part of d total / d leaf that flows through the chosen channels, for each leaf.

        With `note_bypass`, a finding reports the fraction of the gradient that bypasses the layer.

        Errors   BadTarget if the layer is not between the leaves and the score
        """
        passed, self._outputs = self._outputs, []
        if not passed or not all(output.requires_grad for output in passed):
            raise BadTarget(
                f"Layer {shorten(self.target.layer)} of through=(layer, channels) is not between the explained tensor "
                "and the "
                "score, so no gradient flows through it. Choose a layer that runs after the explained one."
            )
        output_gradients = torch.autograd.grad(total, passed, retain_graph=True, materialize_grads=True)
        axis = self.layout.channel_axis
        chosen = [self.target.only(g, a, axis) for g, a in zip(output_gradients, passed, strict=True)]
        if note_bypass and is_recording():
            self._note_bypass(total, passed, output_gradients, leaves)
        return list(torch.autograd.grad(passed, leaves, chosen, materialize_grads=True))

    def _note_bypass(
        self, total: Tensor, passed: Sequence[Tensor], output_gradients: Sequence[Tensor], leaves: Sequence[Tensor]
    ) -> None:
        whole = torch.autograd.grad(total, leaves, retain_graph=True, materialize_grads=True)
        inside = torch.autograd.grad(passed, leaves, output_gradients, retain_graph=True, materialize_grads=True)
        for a, b in zip(whole, inside, strict=True):
            size, around = float(a.norm()), float((a - b).norm())
            share = around / size if size else 0.0
            if share > 1e-4:
                note_finding(
                    "bypass",
                    f"Not every path passes through layer {self.layout.name!r}: {share:.0%} of the gradient bypasses "
                    "it and is not in any channel's map.",
                    layer=self.layout.name,
                    share=share,
                )
