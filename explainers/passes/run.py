"""The forward and backward passes that all methods share. Passes that begin or end at a layer: at_layer.py.

    Run.values     forwards only, of many variants (the perturbation methods)
    Run.gradient   one forward, one backward down to the input (the input-gradient methods)
    Run.at         one forward, one backward down to layers, for variants and with a layer's output replaced
    Run.outputs    a forward that ends at a layer

None of them touches the model: see network/eval_view.py for the mode, hooks/ for the hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadTarget, NothingSpatial, UnsupportedModel
from explainers.findings import is_recording, note_gradient, note_option, note_scores
from explainers.hooks.calls import Edit, replaced_outputs
from explainers.hooks.records import map_tensors
from explainers.layers.layout import LayerLayout, nothing_spatial
from explainers.layers.lookup import layer_layout
from explainers.network.batch_norm import guard_batch_norms, mixes_rows
from explainers.network.eval_view import EvalView, one_call
from explainers.network.forwarded import Forwarded
from explainers.network.fused_copy import WORTH_TIMING, FusedCopy, channels_last, faster_in_bf16, fused_copy
from explainers.network.quantized import no_gradient
from explainers.options import LayerName
from explainers.passes import graph
from explainers.passes.leaf import LayerLeaf, tensor_of
from explainers.passes.loop import Loop, halved, joined, now
from explainers.targets import Target, TargetLike, Through, Unit, as_target, evaluate, fix


def at_least_float32(tensor: Tensor) -> Tensor:
    """Detached, in float32, or in float64 where it is."""
    tensor = tensor.detach() if not tensor.is_quantized else tensor.dequantize()
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


class _StopForward(Exception):
    """Ends a forward pass at the last layer whose output is needed."""


@dataclass
class Run:
    """One call: the model, the network as it runs, a copy of the images, and the target, fixed by the first scores.

    `many` announces many variants of the images; `precision` is theirs; `loop` runs them, and has the budget.
    """

    view: EvalView
    model: nn.Module
    network: nn.Module
    given: Tensor
    images: Tensor
    requested: Target | None
    many: bool = False
    precision: str = "float32"
    loop: Loop | None = None
    target: Target | None = None
    clean_output: Any = field(default=None, init=False)
    _fused: FusedCopy | None = field(default=None, init=False)
    _unit_layout: LayerLayout | None = field(default=None, init=False)
    _through: Through | None = field(default=None, init=False)
    _through_layout: LayerLayout | None = field(default=None, init=False)
    _through_output: Tensor | None = field(default=None, init=False)

    def find_target_layer(self) -> None:
        """Find the layer that a `Through` or `Unit` target names, before any hook is there: it may run the network."""
        if isinstance(self.requested, Through):
            self._through, inner = self.requested, self.requested.target
            self.requested = None if inner is None else as_target(inner)
            self._through_layout = self.layer_layout(self._through.layer)
        if isinstance(self.requested, Unit):
            self._unit_layout = self.layer_layout(self.requested.layer, counted=True, spatial=False)

    @property
    def is_restricted(self) -> bool:
        """Whether gradients flow through chosen channels of a layer alone: they are those of a part of the score."""
        return self._through is not None

    @property
    def _takes_one_size(self) -> bool:
        """Whether a batch must have as many rows as the images: frozen graphs, and a `forward=` that takes no more."""
        one = isinstance(self.network, Forwarded) and self.network.one_by_one
        return one or self.view.kind in ("traced", "exported")

    def layer_layout(self, layer: LayerName | None, *, counted: bool = False, spatial: bool = True) -> LayerLayout:
        """The layer's name and layout; None is the default layer. `counted` where the forward pass will end there."""
        return layer_layout(self.view, self.images, layer, counted=counted, spatial=spatial)

    def forward(self, batch: Tensor, network: nn.Module | None = None) -> Any:
        """What the target scores: the network's output for a batch of variants, or a unit's layer."""
        if network is not None:
            return network(batch)
        with ExitStack() as stack:
            if self._through_layout is not None:
                stack.enter_context(replaced_outputs(self.network, [(self._through_layout, self._pass)]))
            if self._unit_layout is not None:
                return self._unit_layout.to_maps(self.outputs(self._unit_layout, batch))
            if len(batch) != len(self.images) and self._takes_one_size:
                return self._in_chunks(batch)
            return self.network(batch)

    def fast_network(self, layer: str | None = None) -> nn.Module | None:
        """The private copy that answers faster, where many variants will run; None where the network runs itself.

        With `layer`, only where that layer's output is the network's own in the copy too.
        """
        partial = self._through_layout is not None or self._unit_layout is not None
        late = self._fused is None and self.loop is not None and not self.loop.affords(2 * len(self.images))
        if not self.many or partial or late or self.view.kind is not None or isinstance(self.network, Forwarded):
            return None
        if self.clean_output is None:
            self.score_inputs()
        if self._fused is None and isinstance(self.clean_output, Tensor):
            self._fused = fused_copy(self.model, self.network, self.images, self.clean_output)
        if self._fused is None:
            self.many = False
        elif layer is None or layer.partition("#")[0] not in self._fused.fused:
            return self._fused.network
        return None

    def _in_chunks(self, batch: Tensor) -> Any:
        """Traced and exported networks may take no batch size but the one they were made with: that of the images."""
        count = len(self.images)
        rows = [batch[start : start + count] for start in range(0, len(batch), count)]
        rows[-1] = torch.cat([rows[-1], rows[-1][:1].expand(count - len(rows[-1]), *batch.shape[1:])])
        whole = joined([self.network(chunk) for chunk in rows])
        return map_tensors(whole, lambda tensor: tensor[: len(batch)])

    def outputs(self, where: LayerLayout, batch: Tensor) -> Tensor:
        """The layer's output for a batch, in its own layout; the forward pass ends there."""
        leaf = LayerLeaf(where)

        def keep(output: Any) -> None:
            leaf.outputs.append(tensor_of(where.name, output).clone())
            raise _StopForward

        with replaced_outputs(self.network, [(where, keep)]), suppress(_StopForward):
            self.network(batch)
        return leaf.single_output()

    def score(self, output: Any, pictures: Sequence[int] | None = None, target: Target | None = None) -> Tensor:
        """The score of each row of an output; `pictures` says which picture a row is a variant of."""
        count = len(self.images)
        self.target = self.target or fix(self.requested, output, count)
        target = target or self.target
        target = target if pictures is None else target.rows(pictures)
        scores = evaluate(target, output, count if pictures is None else len(pictures))
        if not scores.requires_grad and torch.is_grad_enabled():
            graph.refuse_target(target, output)
        if pictures is not None:
            return scores
        named = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
        whole = output if isinstance(output, Tensor) else named
        known = at_least_float32(whole) if isinstance(whole, Tensor) and whole.ndim == 2 else None
        note_scores(known, self.target, at_least_float32(scores))
        return scores

    def score_inputs(self) -> Tensor:
        """Scores [N] of the images themselves, without a graph; classes are fixed by them.

        The classes are always those of full precision; the scores are in the precision of the variants' scores, so that
        their difference holds no rounding of its own.
        """
        began = now(self.images.device)
        with torch.no_grad():
            self.clean_output = self.forward(self.images.clone())
            scores = at_least_float32(self.score(self.clean_output))
        if self.loop is not None:
            self.loop.measure(self.images, began)
        if self.precision == "auto":
            self._choose_precision()
        if self.loop is not None and self.fast_network() is not None and self._fused is not None:
            self.loop.note_largest(self._fused.largest // (2 if self.precision == "bf16" else 1))
        return self.values(self.images, range(len(scores))) if self.precision == "bf16" else scores

    def _choose_precision(self) -> None:
        """Replace "auto": bfloat16 where the fused copy runs clearly faster in it, float32 anywhere else."""
        self.precision = "float32"  # for the clean pass that the fused copy is checked against
        self.fast_network()
        worth = self.loop is None or self.loop.affords(WORTH_TIMING)
        if self._fused is not None and faster_in_bf16(self._fused, self.images, worth):
            self.precision = "bf16"
        note_option("precision", self.precision)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which variants run: bfloat16 where that was requested, or chosen."""
        if self.precision == "auto":
            self._choose_precision()
        wanted = self.precision == "bf16"
        return torch.autocast(self.images.device.type, torch.bfloat16) if wanted else nullcontext()

    @halved
    def values(self, batch: Tensor, pictures: Sequence[int], *, target: Target | None = None) -> Tensor:
        """Scores [B] of variants, by another target where one is given; row b is a variant of picture `pictures[b]`."""
        self.refuse_through()
        network = self.fast_network()
        with torch.no_grad(), self.autocast():
            batch = batch if network is None else channels_last(batch)
            return at_least_float32(self.score(self.forward(batch, network), pictures, target))

    def gradient(
        self, batch: Tensor, pictures: Sequence[int] | None = None, *, rule: Callable[[Tensor], Any] | None = None
    ) -> Tensor:
        """d score / d batch, [B, C, H, W]; `rule` changes this call's backward graph before it runs."""
        return self.scores_and_gradient(batch, pictures, rule=rule, keep=pictures is None and rule is None)[1]

    @halved
    def scores_and_gradient(
        self,
        batch: Tensor,
        pictures: Sequence[int] | None = None,
        *,
        rule: Callable[[Tensor], Any] | None = None,
        keep: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Scores [B] of the batch, and their gradient as `gradient` gives it, from one pass.

        With `keep` the graph may serve the next question about the same images.
        """
        network = self.fast_network() if rule is None and pictures is not None else None

        def build() -> tuple[Any, list[Tensor]]:
            leaf = (batch.detach().clone() if network is None else channels_last(batch.detach())).requires_grad_()
            # The network gets a copy: its first operation may work in place, which a leaf does not allow.
            return self.forward(leaf.clone(), network), [leaf]

        with torch.enable_grad(), self.autocast():
            output, leaves = self._graph("input", build) if keep else build()
            scores = self.score(output, pictures)
            total = scores.sum()
            if total.requires_grad and rule is not None:
                rule(total)
            (gradient,) = self.vjp(total, leaves, note_bypass=rule is None)
        if pictures is None:
            note_gradient(gradient)
        return at_least_float32(scores), at_least_float32(gradient)

    def _graph(self, key: Any, build: Callable[[], tuple[Any, list[Tensor]]]) -> tuple[Any, list[Tensor]]:
        """Output of the images' own forward pass and the leaves of its graph, kept where the call will ask again."""
        graphs = self.view.graphs
        if graphs is None or self._through_layout is not None or self._unit_layout is not None:
            return build()
        if key not in graphs or graphs[key][0] is not self.given:
            graphs[key] = self.given, *build()
        return graphs[key][1], graphs[key][2]

    def at(
        self,
        layouts: Sequence[LayerLayout],
        batch: Tensor,
        pictures: Sequence[int] | None = None,
        *,
        instead: Mapping[str, Edit] | None = None,
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Each layer's own output A for the batch and d score / dA, in the layer's layout, by layer name."""
        return self.scores_at(layouts, batch, pictures, instead=instead)[1]

    def scores_at(
        self,
        layouts: Sequence[LayerLayout],
        batch: Tensor,
        pictures: Sequence[int] | None = None,
        *,
        instead: Mapping[str, Edit] | None = None,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Scores [B] of the batch, and what `at` gives, from one pass.

        The network runs without a graph up to the first of the layers. Its output, cut off, becomes the leaf from which
        the graph is built; layers after it are recorded on that graph. One backward pass then serves all, and no
        parameter is asked for a gradient. `instead` has functions that replace a layer's output before it is cut off.
        """
        if self.view.quantized:
            raise UnsupportedModel(no_gradient(self.view.quantized))
        if self.loop is not None and pictures is not None and instead is None:
            return self.loop.in_halves(lambda b, rows: self.scores_at(layouts, b, rows, instead={}), batch, pictures)
        layouts = list({layout.name: layout for layout in layouts}.values())
        names = [layout.name for layout in layouts]
        precision = nullcontext if self.precision == "float32" else self.autocast

        def build() -> tuple[Any, list[Tensor]]:
            leaves = [LayerLeaf(layout, (instead or {}).get(layout.name)) for layout in layouts]
            edits = [(leaf.layout, leaf.hook) for leaf in leaves]
            with torch.no_grad(), precision(), replaced_outputs(self.network, edits):
                # A copy of the images: the network may work in place.
                output = self.forward(batch.clone() if batch is self.images else batch)
            return output, [leaf.single_output() for leaf in leaves]

        own = pictures is None and instead is None
        output, activations = self._graph((*names,), build) if own else build()
        with torch.enable_grad(), precision():
            scores = self.score(output, pictures)
            gradients = self.vjp(scores.sum(), activations, layouts=layouts)
        return at_least_float32(scores), dict(zip(names, zip(activations, gradients, strict=True), strict=True))

    def vjp(
        self, total: Tensor, leaves: Sequence[Tensor], *, layouts: Sequence[LayerLayout] = (), note_bypass: bool = True
    ) -> list[Tensor]:
        """d total / d each of `leaves`, or the part of it that passes the chosen channels of a `Through` target.

        `layouts` are the layers whose outputs the leaves are; without them the leaves are the images.

        Errors   UnsupportedModel where the score follows a leaf from which its graph is cut off
        """
        if not total.requires_grad:
            self.refuse_detached(layouts)
            return [torch.zeros_like(leaf) for leaf in leaves]
        guard_batch_norms(total)
        if self._through is None or self._through_layout is None:
            again = self.view.graphs is not None
            found = torch.autograd.grad(total, leaves, retain_graph=again, allow_unused=True)
            if None in found:
                self.refuse_detached([layouts[i] for i, gradient in enumerate(found) if layouts and gradient is None])
            return [torch.zeros_like(a) if g is None else g for a, g in zip(leaves, found, strict=True)]
        passed, self._through_output = self._through_output, None
        if passed is None or not passed.requires_grad:
            raise BadTarget(
                f"Layer {self._through.layer!r} is not between the score and what is explained, so no gradient flows "
                "through it. Choose a layer that runs, and after the one explained, for through=(layer, channels)."
            )
        (output_gradient,) = torch.autograd.grad(total, passed, retain_graph=True, materialize_grads=True)
        chosen = self._through.only(output_gradient, self._through_layout.channel_axis)
        if note_bypass and is_recording():
            graph.note_bypass(total, passed, output_gradient, leaves, self._through_layout.name)
        return list(torch.autograd.grad(passed, leaves, chosen, materialize_grads=True))

    def refuse_detached(self, layouts: Sequence[LayerLayout]) -> None:
        """Refuse a score that follows the layers, or the images where none is given, though it has no gradient there.

        Errors   UnsupportedModel
        """
        rows = range(len(self.images))
        with torch.no_grad():
            graph.refuse_detached(self.network, self.images, lambda x: self.score(self.forward(x), rows), layouts)

    def _pass(self, output: Any) -> Tensor:
        self._through_output = tensor_of("of through=(layer, channels)", output)
        if self._through_output.requires_grad:
            # A module may return its own input (Dropout in eval): the view gets the gradient of this output alone.
            self._through_output = self._through_output.view_as(self._through_output)
        return self._through_output.clone()

    def refuse_through(self) -> None:
        """Refuse a `Through` target where no gradient is taken.

        Errors   BadTarget
        """
        if self._through is not None:
            raise BadTarget(
                "through=(layer, channels) restricts gradients, and this method takes none: it measures scores. Choose "
                "a gradient method or a gradient-weighted CAM."
            )


@contextmanager
def open_run(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    many: bool = False,
    precision: str = "float32",
    loop: Loop | None = None,
) -> Iterator[Run]:
    """A `Run` of the model on copies of the images; the caller's gradient mode is back after the block.

    `many` tells that many variants will run; `precision` "bf16" runs them in bfloat16 where that is possible, "auto"
    where it is faster too. `loop` is that of a long method, made before this.
    """
    with torch.inference_mode(False), torch.no_grad(), one_call(model) as view:
        requested = None if target is None else as_target(target, len(images))
        run = Run(view, view.model, view.network, images, images.detach().clone(), requested, many, precision, loop)
        if (many or loop is not None) and isinstance(run.network, Forwarded):
            run.network.check_variants(run.images)
        if loop is not None and (getattr(run.network, "one_by_one", False) or mixes_rows(run.network)):
            loop.one_by_one()
        if isinstance(requested, (Through, Unit)):
            run.find_target_layer()
        yield run


def maps_of(where: LayerLayout, tensor: Tensor) -> Tensor:
    """A layer's tensor as [N, K, h, w] in float32 or float64.

    Errors   NothingSpatial where it has no height and width
    """
    maps = where.to_maps(at_least_float32(tensor))
    if maps.ndim != 4:
        raise NothingSpatial(nothing_spatial(where.name, tuple(tensor.shape)))
    return maps
