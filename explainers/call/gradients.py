"""Backward passes of one call: gradients of the scores down to the images, or to layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from explainers.call import graph
from explainers.call.batch_norm import BackwardGraph, backward_graph, guard_batch_norms
from explainers.call.fused_copy import channels_last
from explainers.call.loop import Loop, split_on_out_of_memory
from explainers.call.scores import ForwardPasses, LayerLeaf, Scoring, at_least_float32
from explainers.dtypes import no_gradient
from explainers.errors import UnsupportedModel
from explainers.findings import note_gradient
from explainers.hooks.calls import Edit, replaced_outputs
from explainers.layers.layout import LayerLayout
from explainers.nested import concatenate_outputs
from explainers.targets import Logit

T = TypeVar("T")
GraphRule = Callable[[list[Any]], Any]
"""Receives the nodes of a backward graph, except for its leaves."""


@dataclass(frozen=True, eq=False)
class BackwardPasses:
    """Gradients of the scores. `given` are the caller's images, by which several requests share a graph."""

    forward: ForwardPasses
    scoring: Scoring
    given: Tensor
    loop: Loop | None

    def gradient(
        self, batch: Tensor, image_indices: Sequence[int] | None = None, *, rule: GraphRule | None = None
    ) -> Tensor:
        """Return d score / d batch, [B, C, H, W]; `rule` modifies this call's backward graph before it runs."""
        keep = image_indices is None and rule is None
        return self.scores_and_gradient(batch, image_indices, rule=rule, keep=keep)[1]

    @split_on_out_of_memory
    def scores_and_gradient(
        self,
        batch: Tensor,
        image_indices: Sequence[int] | None = None,
        *,
        rule: GraphRule | None = None,
        keep: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the scores [B] of the batch and their gradient as `gradient` computes it, from one pass.

        With `keep`, the graph may be reused by the next request for the same images.
        """
        if len(batch) > 1 and self.forward.view.is_row_by_row:
            found = self._each_row(lambda row, n: self.scores_and_gradient(row, n, rule=rule), batch, image_indices)
            if image_indices is None:
                note_gradient(found[1])
            return found
        network = self.scoring.fast_network() if rule is None and image_indices is not None else None

        def build() -> tuple[Any, list[Tensor]]:
            leaf = (batch.detach().clone() if network is None else channels_last(batch.detach())).requires_grad_()
            # The network gets a copy, because its first operation may be in-place, which a leaf does not allow.
            return self.forward(leaf.clone(), network), [leaf]

        precision = nullcontext if self.scoring.precision == "float32" else self.scoring.autocast
        with torch.enable_grad(), precision():
            output, leaves = self._graph("input", build) if keep and self.forward.view.graphs is not None else build()
            scores = self.scoring.score(output, image_indices)
            total = scores.sum()
            known = None
            if total.requires_grad and rule is not None:
                known = backward_graph(total)
                rule(known.nodes)
            kind = ("input", network is None, batch.shape, batch.stride(), self.scoring.precision)
            (gradient,) = self.vjp(
                total, leaves, note_bypass=rule is None, known=known, kind=kind if rule is None else None
            )
        if image_indices is None:
            note_gradient(gradient)
        return at_least_float32(scores), at_least_float32(gradient)

    def at(
        self,
        layouts: Sequence[LayerLayout],
        batch: Tensor,
        image_indices: Sequence[int] | None = None,
        *,
        replacements: Mapping[str, Edit] | None = None,
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return each layer's output A for the batch and d score / dA, in the layer's layout, by layer name."""
        return self.scores_at(layouts, batch, image_indices, replacements=replacements)[1]

    def scores_at(
        self,
        layouts: Sequence[LayerLayout],
        batch: Tensor,
        image_indices: Sequence[int] | None = None,
        *,
        replacements: Mapping[str, Edit] | None = None,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Return the scores [B] of the batch and the result of `at`, from one pass.

        The network runs without a graph up to the first of the layers. Its detached output becomes the leaf of the
        graph; later layers are recorded as nodes of that graph. A single backward pass then serves all layers, and no
        parameter gradients are computed. `replacements` are functions that edit a layer's output before it is detached.
        """
        if self.forward.view.quantized:
            raise UnsupportedModel(no_gradient(self.forward.view.quantized))
        if self.loop is not None and image_indices is not None and replacements is None:
            return self.loop.run_in_halves(
                lambda part, rows: self.scores_at(layouts, part, rows, replacements={}), batch, image_indices
            )
        if len(batch) > 1 and self.forward.view.is_row_by_row:
            edits = replacements or {}
            return self._each_row(
                lambda row, n: self.scores_at(layouts, row, n, replacements=edits), batch, image_indices
            )
        precision = nullcontext if self.scoring.precision == "float32" else self.scoring.autocast
        leaves: dict[str, LayerLeaf] = {}
        for layout in layouts:
            leaves[layout.name] = LayerLeaf(layout, (replacements or {}).get(layout.name))
        recorded = list(map(attrgetter("layout", "hook"), leaves.values()))

        def build() -> tuple[Any, list[Tensor]]:
            with torch.no_grad(), precision(), replaced_outputs(self.forward.view.network, recorded):
                output, outputs = self.forward(batch.clone()), []  # the network may modify its input in place
            for leaf in leaves.values():
                outputs.append(leaf.single_output(len(batch)))
            return output, outputs

        reuses = self.forward.view.graphs is not None and image_indices is None and replacements is None
        output, activations = self._graph((*leaves,), build) if reuses else build()
        with torch.enable_grad(), precision():
            scores = self.scoring.score(output, image_indices)
            kind = (*leaves, batch.shape, batch.stride(), self.scoring.precision) if replacements is None else None
            gradients = self.vjp(scores.sum(), activations, layers=tuple(leaves.values()), kind=kind)
        return at_least_float32(scores), dict(zip(leaves, zip(activations, gradients, strict=True), strict=True))

    def _each_row(
        self, work: Callable[[Tensor, Sequence[int]], T], batch: Tensor, image_indices: Sequence[int] | None
    ) -> T:
        """Return the concatenated results of `work` for each row; the classes are fixed on the images first."""
        if self.scoring.target is None:
            self.scoring.score_inputs()
        rows = range(len(batch)) if image_indices is None else image_indices
        found: T = concatenate_outputs([work(batch[n : n + 1], [index]) for n, index in enumerate(rows)])
        return found

    def vjp(
        self,
        total: Tensor,
        leaves: Sequence[Tensor],
        *,
        layers: Sequence[LayerLeaf] = (),
        note_bypass: bool = True,
        known: BackwardGraph | None = None,
        kind: Any = None,
    ) -> list[Tensor]:
        """Return d total / d leaf for each leaf, or the part that flows through the channels of a `Through` target.

        `layers` are the layers whose outputs the leaves are; without them the leaves are the images. `known` is the
        graph of `total`, if it was read before. `kind` says which pass this is, if every such pass has the same graph.

        Errors   UnsupportedModel if the score depends on a leaf from which its graph is detached
        """
        if not total.requires_grad:
            self.refuse_detached([layer.layout for layer in layers])
            return [torch.zeros_like(leaf) for leaf in leaves]
        if self.forward.through is not None:
            guard_batch_norms(total, graph=known)
            return self.forward.through.gradients(total, leaves, note_bypass=note_bypass)
        snapshot = self.forward.view.snapshot
        if snapshot is None or snapshot.is_hooked or not isinstance(self.scoring.target, Logit):
            kind = None
        if kind is None or snapshot is None or kind not in snapshot.regular:
            is_regular = guard_batch_norms(total, leaves=leaves, graph=known)
            if is_regular and kind is not None and snapshot is not None:
                snapshot.regular.add(kind)
        reusable = self.forward.view.graphs is not None
        found = torch.autograd.grad(total, leaves, retain_graph=reusable, allow_unused=True)
        if all(map(torch.is_tensor, found)):  # comparing a tensor with None runs an operation
            return list(found)
        self.refuse_detached([layers[i].layout for i, gradient in enumerate(found) if layers and gradient is None])
        return [torch.zeros_like(a) if g is None else g for a, g in zip(leaves, found, strict=True)]

    def refuse_detached(self, layouts: Sequence[LayerLayout]) -> None:
        """Raise an error if the score depends on the layers, or on the images if none is given, without a gradient.

        Errors   UnsupportedModel
        """
        rows = range(len(self.forward.images))
        with torch.no_grad():
            graph.refuse_detached(
                self.forward.view.network,
                self.forward.images,
                lambda x: self.scoring.score(self.forward(x), rows),
                layouts,
            )

    def _graph(self, key: Any, build: Callable[[], tuple[Any, list[Tensor]]]) -> tuple[Any, list[Tensor]]:
        """Return the output of the images' forward pass and the leaves of its graph, cached if the call reuses them."""
        graphs = self.forward.view.graphs
        if graphs is None or self.forward.through is not None or self.forward.unit is not None:
            return build()
        if key not in graphs or graphs[key][0] is not self.given:
            graphs[key] = self.given, *build()
        return graphs[key][1], graphs[key][2]
