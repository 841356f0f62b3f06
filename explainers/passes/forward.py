"""Forward passes of one call: whole batches, or up to a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget
from explainers.hooks.calls import Edit, replaced_outputs
from explainers.hooks.locate import HookPoint
from explainers.layers.layout import LayerLayout
from explainers.nested import concatenate_outputs, map_tensors
from explainers.network.eval_view import EvalView
from explainers.network.forward_wrapper import ForwardWrapper
from explainers.network.rows.row_by_row import RowByRow
from explainers.outputs import scores_of
from explainers.passes.leaf import LayerLeaf
from explainers.passes.tensors import at_least_float32, single_tensor
from explainers.passes.through import ThroughLayer

Edits = Sequence[tuple[HookPoint, Edit]]
"""Points of the network and the functions that replace their outputs, as in `replaced_outputs`."""


class _StopForward(Exception):
    """Stops a forward pass at the last layer whose output is needed."""


@dataclass(frozen=True, eq=False)
class ForwardPasses:
    """Runs the network of `view` on variants of `images`.

    `unit` is the layer of a `Unit` target, where a pass stops; `through` the layer of a `Through` target.
    """

    view: EvalView
    images: Tensor
    unit: LayerLayout | None = None
    through: ThroughLayer | None = None

    def __call__(self, batch: Tensor, network: Callable[[Tensor], Any] | None = None) -> Any:
        """Return what the target scores: the network's output for a batch of variants, or that of a unit's layer.

        The network may modify the batch in place. If `network`, a copy, is given, it runs instead.
        """
        if network is not None:
            return _with_rows(network(batch), len(batch))
        network, through = self.view.network, self.through
        hook = nullcontext() if through is None else replaced_outputs(network, [(through.layout, through.record)])
        if through is not None:
            through.start()
        with hook:
            if self.unit is not None:
                return self.unit.to_maps(self.outputs(self.unit, batch))
            if len(batch) != len(self.images) and self._takes_one_size:
                return self._in_chunks(batch)
            return _with_rows(network(batch), len(batch))

    def outputs(self, layout: LayerLayout, batch: Tensor) -> Tensor:
        """Return the layer's output for a batch, in the layer's layout; the forward pass stops there."""
        if len(batch) > 1 and self.is_row_by_row:
            return torch.cat([self.outputs(layout, batch[n : n + 1]) for n in range(len(batch))])
        leaf = LayerLeaf(layout)

        def keep(output: Any) -> None:
            leaf.outputs.append(single_tensor(layout.name, output).clone())
            raise _StopForward

        with replaced_outputs(self.view.network, [(layout, keep)]), suppress(_StopForward):
            self.view.network(batch.clone())  # the network may modify its input
        return leaf.single_output(len(batch))

    def batches(self, images: Tensor) -> Sequence[Tensor]:
        """Return the batches of passes with hooks: one, or one for each image if the network runs row by row."""
        return images.split(1) if self.is_row_by_row else [images]

    def scores(self, images: Tensor, edits: Callable[[int, int], Edits] | None = None) -> Tensor:
        """Return the scores [N, K] of images, at least float32.

        `edits(start, end)` returns the edits of the pass of these images: one pass, or one for each image if the
        network runs row by row.

        Errors   BadTarget if the output of the model is not [N, K]
        """
        scores, start = [], 0
        for batch in self.batches(images):
            end = start + len(batch)
            with replaced_outputs(self.view.network, edits(start, end)) if edits else nullcontext():
                scores.append(at_least_float32(scores_of(self(batch.clone()))))
            start = end
        return torch.cat(scores)

    def refuse_through(self) -> None:
        """Raise an error if a `Through` target is used with a gradient-free method.

        Errors   BadTarget
        """
        if self.through is not None:
            raise BadTarget(
                "through=(layer, channels) restricts gradients, but this method only uses scores. Choose a gradient "
                "method or a gradient-weighted CAM."
            )

    @property
    def is_row_by_row(self) -> bool:
        """Whether the network runs one row at a time, so that passes with hooks must get single rows."""
        return isinstance(self.view.network, RowByRow)

    @property
    def _takes_one_size(self) -> bool:
        """Whether a batch needs as many rows as the images: frozen graphs, and `forward=` with a fixed batch size."""
        network = self.view.network
        one = isinstance(network, ForwardWrapper) and network.one_by_one
        return one or (self.view.kind in ("traced", "exported") and not self.is_row_by_row)

    def _in_chunks(self, batch: Tensor) -> Any:
        """Run a batch in chunks of the images' batch size: traced and exported networks may accept no other."""
        count = len(self.images)
        rows = [batch[start : start + count] for start in range(0, len(batch), count)]
        rows[-1] = torch.cat([rows[-1], rows[-1][:1].expand(count - len(rows[-1]), *batch.shape[1:])])
        whole = concatenate_outputs([self.view.network(chunk) for chunk in rows])
        return map_tensors(whole, lambda tensor: tensor[: len(batch)])


def _with_rows(output: Any, count: int) -> Any:
    """Return the output; scores [K] of a single image, from a network that squeezes them, get their first axis back."""
    squeezed = count == 1 and isinstance(output, Tensor) and output.ndim == 1 and len(output) > 1
    return output[None] if squeezed else output
