"""The value of a cell before the activation function that cuts it off, such as a ReLU6 at 6, as a target."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from explainers.derived_targets import Unit
from explainers.hooks.edit import edit_outputs
from explainers.rules.rectifiers.relu_rules import skip

CUTTING = ("Hardtanh", "Clamp", "Relu", "Threshold", "Hardswish", "Hardsigmoid")
"""Starts of the names of graph nodes of functions that are constant in a part of their range."""
PASSING = ("Alias", "Clone", "View", "Reshape", "Permute", "Transpose", "Contiguous")
DEPTH = 6  # passing nodes after the activation


class BeforeActivation(Unit):
    """A `Unit` whose gradient skips the activation function at the end of its layer.

    An activation function that cuts a value off, such as a ReLU6 at 6, has no gradient there. With this target, methods
    show what the value before that function depends on.

    Example
        >>> saliency(model, images, BeforeActivation("layer4", 7, (3, 3))).shape
        torch.Size([1, 3, 224, 224])
    """

    def __call__(self, output: Any) -> Tensor:
        """Return the activations [N], in the units of the layer; their gradient is that before the activation."""
        if (node := _cutting_node(output)) is not None:
            skip(node)
        return super().__call__(output)

    def value(self, model: nn.Module, images: Tensor) -> Tensor | None:
        """Return the value before the activation function, of the first image.

        Returns  a scalar in the units of the layer, NaN if it is not known (the graph of a ReLU has only its result);
                 None if the layer does not end with a function that cuts values
        """
        values: list[Tensor | None] = []

        def read(output: Tensor) -> None:
            node = _cutting_node(output)
            if node is None:
                values.append(None)
            elif (before := getattr(node, "_saved_self", None)) is None:
                values.append(output.new_tensor(float("nan")))
            else:
                values.append(self.fixed(before, len(images))(before)[0].detach())

        with torch.enable_grad(), edit_outputs(model, {self.layer: read}):
            model(images.detach().clone().requires_grad_())
        return values[0] if values else None


def _cutting_node(output: Any) -> Any:
    """Return the graph node of the activation function that gives this output, or None."""
    node = getattr(output, "grad_fn", None)
    for _ in range(DEPTH):
        if node is None or node.name().startswith(CUTTING):
            return node
        if not node.name().startswith(PASSING):
            return None
        node = node.next_functions[0][0]
    return None
