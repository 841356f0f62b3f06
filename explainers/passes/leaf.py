"""Record a layer's outputs in one forward pass as leaves of the autograd graph of the following layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from explainers.errors import LayerNotFound, LayerRanRepeatedly, UnsupportedModel
from explainers.hooks.calls import Edit
from explainers.hooks.records import did_not_run, ran_repeatedly
from explainers.layers.layout import LayerLayout
from explainers.passes.tensors import single_tensor


@dataclass
class LayerLeaf:
    """Collect a layer's outputs in a forward pass as leaves or nodes of the graph, edited by `replacement` if given."""

    layout: LayerLayout
    replacement: Edit | None = None
    outputs: list[Tensor] = field(default_factory=list)

    def hook(self, output: Any) -> Tensor:
        """Record the output as a leaf, or as a node in the graph of an earlier leaf, and return a clone."""
        tensor = output if isinstance(output, Tensor) else single_tensor(self.layout.name, output)
        if self.replacement is not None:
            tensor = self.replacement(tensor)
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
            torch.set_grad_enabled(True)
        else:
            # A module may return its input (Dropout in eval mode); the view receives only the gradient of this output.
            tensor = tensor.view_as(tensor)
        self.outputs.append(tensor)
        # A clone, because the next layer may overwrite its input (ReLU(inplace=True)).
        return tensor.clone()

    def single_output(self, count: int) -> Tensor:
        """Return the only recorded output, of a pass of `count` images.

        Errors   LayerNotFound, LayerRanRepeatedly, UnsupportedModel if it does not have the rows of all images
        """
        path = self.layout.name
        if not self.outputs:
            raise LayerNotFound(did_not_run(path))
        if len(self.outputs) > 1:
            raise LayerRanRepeatedly(ran_repeatedly(path, len(self.outputs)))
        rows = len(self.outputs[0]) if self.layout.layout and self.replacement is None else count
        if rows not in (count, count * self.layout.frames):
            raise UnsupportedModel(
                f"Layer {path!r} returned {rows} rows for {count} images: the network runs it on parts of the batch. "
                "Give fewer images at a time."
            )
        return self.outputs[0]
