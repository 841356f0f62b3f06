"""A layer's outputs in one forward pass, recorded by a hook as leaves of the graph behind the layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.errors import LayerNotFound, LayerRanRepeatedly
from explainers.hooks.calls import Edit
from explainers.hooks.records import ran_repeatedly
from explainers.layers.layout import LayerLayout


@dataclass
class LayerLeaf:
    """Collects a layer's outputs in a forward pass as leaves of the graph, or points on it; `instead` edits them."""

    layout: LayerLayout
    instead: Edit | None = None
    outputs: list[Tensor] = field(default_factory=list)

    def hook(self, output: Any) -> Tensor:
        """Record the output as a leaf, or as a point on the graph of an earlier leaf, and return a clone."""
        tensor = output if isinstance(output, Tensor) else tensor_of(self.layout.name, output)
        if self.instead is not None:
            tensor = self.instead(tensor)
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
            torch.set_grad_enabled(True)
        else:
            # A module may return its own input (Dropout in eval): the view gets the gradient of this output alone.
            tensor = tensor.view_as(tensor)
        self.outputs.append(tensor)
        # A clone: what follows may overwrite it (ReLU(inplace=True)), and the record must not change.
        return tensor.clone()

    def single_output(self) -> Tensor:
        path = self.layout.name
        if not self.outputs:
            raise LayerNotFound(
                f"Layer {path!r} did not run in this forward pass. list_layers(model, images) gives those that do."
            )
        if len(self.outputs) > 1:
            raise LayerRanRepeatedly(ran_repeatedly(path, len(self.outputs)))
        return self.outputs[0]


def tensor_of(name: str, output: Any) -> Tensor:
    """A layer's output where it is one tensor, in the layer's own layout; a quantized one in floating point.

    Errors   TypeError where it is a tuple, a dict or anything else
    """
    if isinstance(output, Tensor):
        return output.dequantize() if output.is_quantized else output
    raise TypeError(
        f"Layer {name!r} gives a {type(output).__name__}, not one tensor. Choose a layer inside it, or one after it, "
        "from list_layers(model, images)."
    )


def like(output: Any, edited: Tensor) -> Tensor:
    """An edited copy of a layer's output as what follows takes it: quantized where `output` is, on the same scale."""
    if not isinstance(output, Tensor) or not output.is_quantized:
        return edited
    if output.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return torch.quantize_per_tensor(edited, output.q_scale(), output.q_zero_point(), output.dtype)
    scales, zeros, axis = output.q_per_channel_scales(), output.q_per_channel_zero_points(), output.q_per_channel_axis()
    return torch.quantize_per_channel(edited, scales, zeros, axis, output.dtype)
