"""Forward passes of one call, up to a layer or to the scores of the images and of their variants, as plain tensors.

Many variants run in a faster copy of the network, and in bfloat16 if requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call import graph
from explainers.call.forward_wrapper import ForwardWrapper
from explainers.call.fused_copy import FusedCopy, channels_last, computes_bf16, fused_copy, is_requested, matches
from explainers.call.loop import Loop, now, split_on_out_of_memory
from explainers.call.through import ThroughLayer
from explainers.call.view import EvalView
from explainers.default_targets import resolve_target
from explainers.errors import (
    BadOption,
    BadTarget,
    ExplainerError,
    LayerNotFound,
    LayerRanRepeatedly,
    NoSpatialOutput,
    UnsupportedModel,
    is_out_of_memory,
)
from explainers.findings import note_option, note_scores
from explainers.hooks.calls import Edit, replaced_outputs
from explainers.hooks.locate import HookPoint
from explainers.hooks.records import did_not_run, ran_repeatedly, single_tensor
from explainers.layers.layout import LayerLayout, nothing_spatial
from explainers.nested import concatenate_outputs, map_tensors
from explainers.outputs import scores_in
from explainers.targets import Logit, Target, evaluate, scores_of

Edits = Sequence[tuple[HookPoint, Edit]]
"""Points of the network and the functions that replace their outputs, as in `replaced_outputs`."""


_COMPLEX = (
    "{} has complex values, and a map of real numbers would lose a part of them. Choose a layer with real values, or a "
    "target that is real, such as lambda scores: scores.abs()[:, 0]. capture(model, layer) records complex values."
)


class StopForward(Exception):
    """Stops a forward pass at the last layer whose output is needed."""


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


@dataclass(frozen=True, eq=False)
class ForwardPasses:
    """Runs the network of `view` on variants of `images`.

    `unit` is the layer of a `LayerTarget`, where a pass stops; `through` the layer of a `Through` target.
    """

    view: EvalView
    images: Tensor
    unit: LayerLayout | None = None
    through: ThroughLayer | None = None

    def __call__(self, batch: Tensor, network: Callable[[Tensor], Any] | None = None) -> Any:
        """Return what the target scores: the network's output for a batch of variants, or that of a unit's layer.

        The network may modify the batch in place. If `network`, a copy, is given, it runs instead.
        """
        through = self.through if network is None else None
        hook: AbstractContextManager[None] = nullcontext()
        if through is not None:
            through.start()
            hook = replaced_outputs(self.view.network, [(through.layout, through.record)])
        with hook:
            if network is None and self.unit is not None:
                return self.unit.to_maps(self.outputs(self.unit, batch))
            if network is None and len(batch) != len(self.images) and self._takes_one_size:
                return self._in_chunks(batch)
            output = (network or self.view.network)(batch)
        # Scores [K] of a single image, from a network that squeezes them, get their first axis back.
        squeezed = len(batch) == 1 and isinstance(output, Tensor) and output.ndim == 1 and len(output) > 1
        return output[None] if squeezed else output

    def outputs(self, layout: LayerLayout, batch: Tensor) -> Tensor:
        """Return the layer's output for a batch, in the layer's layout; the forward pass stops there."""
        if len(batch) > 1 and self.view.is_row_by_row:
            return torch.cat([self.outputs(layout, batch[n : n + 1]) for n in range(len(batch))])
        leaf = LayerLeaf(layout)

        def keep(output: Any) -> None:
            leaf.outputs.append(single_tensor(layout.name, output).clone())
            raise StopForward

        with replaced_outputs(self.view.network, [(layout, keep)]), suppress(StopForward):
            self.view.network(batch.clone())  # the network may modify its input
        return leaf.single_output(len(batch))

    def batches(self, images: Tensor) -> Sequence[Tensor]:
        """Return the batches of passes with hooks: one, or one for each image if the network runs row by row."""
        return images.split(1) if self.view.is_row_by_row else [images]

    def edited(self, images: Tensor, edits: Callable[[int, int], Edits] | None = None) -> list[Any]:
        """Return the outputs for images: of one pass, or of one for each image if the network runs row by row.

        `edits(start, end)` returns the edits of the pass of these images.
        """
        outputs, start = [], 0
        for batch in self.batches(images):
            end = start + len(batch)
            with replaced_outputs(self.view.network, edits(start, end)) if edits else nullcontext():
                outputs.append(self(batch.clone()))
            start = end
        return outputs

    def scores(self, images: Tensor, edits: Callable[[int, int], Edits] | None = None) -> Tensor:
        """Return the scores [N, K] of images, at least float32; `edits` as in `edited`.

        Errors   BadTarget if the output of the model is not [N, K]
        """
        return torch.cat([at_least_float32(scores_of(output)) for output in self.edited(images, edits)])

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
    def _takes_one_size(self) -> bool:
        """Whether a batch needs as many rows as the images: frozen graphs, and `forward=` with a fixed batch size."""
        network = self.view.network
        one = isinstance(network, ForwardWrapper) and network.one_by_one
        return one or (self.view.kind in ("traced", "exported") and not self.view.is_row_by_row)

    def _in_chunks(self, batch: Tensor) -> Any:
        """Run a batch in chunks of the images' batch size: traced and exported networks may accept no other."""
        count = len(self.images)
        rows = [batch[start : start + count] for start in range(0, len(batch), count)]
        rows[-1] = torch.cat([rows[-1], rows[-1][:1].expand(count - len(rows[-1]), *batch.shape[1:])])
        whole = concatenate_outputs([self.view.network(chunk) for chunk in rows])
        return map_tensors(whole, lambda tensor: tensor[: len(batch)])


_NOT_COMPILED = (
    "compile=True is not possible here: it needs a network in float32 with a 2-d convolution, called without forward=, "
    "and a target that uses its output. Omit compile=True."
)
_WRONG = "The scores of the compiled network differ from those of the network by more than rounding. Omit compile=True."


@dataclass(eq=False)
class Scoring:
    """The scores of one call. The target that the caller `requested` is resolved to `target` by the first scores.

    `many` announces that many variants of the images will run, `precision` is their precision, and `loop` runs them
    within its budget. `clean_output` is the network's output for the unchanged images, once known.
    """

    forward: ForwardPasses
    requested: Target | None
    loop: Loop | None = None
    many: bool = False
    precision: str = "float32"
    target: Target | None = field(default=None, init=False)
    clean_output: Any = field(default=None, init=False)
    _fused: FusedCopy | None = field(default=None, init=False)

    def score(self, output: Any, image_indices: Sequence[int] | None = None, target: Target | None = None) -> Tensor:
        """Return the score of each row of an output; row b is a variant of image `image_indices[b]`."""
        count = len(self.forward.images)
        asked = self.requested
        if self.target is None:
            self.target = (
                asked if isinstance(asked, Logit) else resolve_target(asked, output, count, self.forward.view.owner)
            )
        target = target or self.target
        target = target if image_indices is None else target.rows(image_indices)
        scores = evaluate(target, output, count if image_indices is None else len(image_indices))
        if not scores.requires_grad and torch.is_grad_enabled():
            graph.refuse_target(target, output)
        if image_indices is not None:
            return scores
        view = self.forward.view
        if view.checked is not None and len(view.checked) == count:
            view.failed = [~scores.detach().isfinite()]
        whole = output if isinstance(output, Tensor) else scores_in(output)
        is_scores = isinstance(whole, Tensor) and whole.ndim == 2 and not whole.is_complex()
        plain = at_least_float32(whole) if isinstance(whole, Tensor) and is_scores else None
        note_scores(plain, self.target, at_least_float32(scores))
        return scores

    def plain(self, scores: Tensor) -> Tensor:
        """Return scores without a graph, in float64 for images in float64, else in float32, as maps are.

        A part of a network, or a target, may compute in float64 although the images are in float32.
        """
        exact = self.forward.images.dtype == torch.float64
        return at_least_float32(scores).to(torch.float64 if exact else torch.float32)

    def score_inputs(self) -> Tensor:
        """Return the scores [N] of the unchanged images, without a graph, and fix the classes.

        The classes are always determined in full precision. The scores are in the precision of the variants' scores, so
        that differences between them contain no additional rounding.
        """
        images = self.forward.images
        start = now(images.device)
        with torch.no_grad():
            self.clean_output = self.forward(images.clone())
            scores = self.plain(self.score(self.clean_output))
        if self.loop is not None:
            self.loop.measure(images, start)
        if self.precision == "auto":
            self._choose_precision()
        if self.loop is not None:
            self.loop.half = self.precision == "bf16"
        if self.precision != "bf16":
            return scores
        try:
            return self.values(images, range(len(scores)))
        except Exception as error:
            if isinstance(error, ExplainerError) or is_out_of_memory(error):
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise BadOption(
                f"The network does not run in bfloat16 ({reason}). Omit precision='bf16', which uses float32."
            ) from error

    @split_on_out_of_memory
    def values(self, batch: Tensor, image_indices: Sequence[int], *, target: Target | None = None) -> Tensor:
        """Return scores [B] of variants, for `target` if given; row b is a variant of image `image_indices[b]`."""
        self.forward.refuse_through()
        network = self.fast_network()
        with torch.no_grad(), self.autocast():
            # Copies, because the network may modify its input in place, and callers use a batch again.
            batch = batch.clone() if network is None else channels_last(batch)
            output = self._run_compiled(batch) if is_requested() else self.forward(batch, network)
            return self.plain(self.score(output, image_indices, target))

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which variants run: bfloat16 if requested or chosen."""
        if self.precision == "auto":
            self._choose_precision()
        wanted = self.precision == "bf16"
        return torch.autocast(self.forward.images.device.type, torch.bfloat16) if wanted else nullcontext()

    def fast_network(self, layer: str | None = None) -> nn.Module | None:
        """Return the faster private copy if many variants will run, else None.

        With `layer`, return it only if the copy computes the same output of that layer as the network.
        """
        view, images = self.forward.view, self.forward.images
        partial = self.forward.through is not None or self.forward.unit is not None
        loop = self.loop
        late = self._fused is None and loop is not None and loop.left <= 2 * len(images) * loop.seconds_per_row
        if (
            not self.many
            or partial
            or late
            or view.kind is not None
            or view.is_row_by_row
            or isinstance(view.network, ForwardWrapper)
        ):
            return None
        if self.clean_output is None:
            self.score_inputs()
        if self._fused is None and isinstance(self.clean_output, Tensor):
            self._fused = fused_copy(view, images, self.clean_output)
        if self._fused is None:
            self.many = False
        elif layer is None or layer.partition("#")[0] not in self._fused.fused:
            return self._fused.network
        return None

    def _run_compiled(self, batch: Tensor) -> Any:
        """Return the output of the compiled copy; its first batch is followed by a comparison with the network.

        Errors   BadOption without a copy, or if it computes other scores
        """
        if self._fused is None:
            raise BadOption(_NOT_COMPILED)
        compiled, count = self._fused.compiled, len(self.forward.images)
        larger_follow = self.loop is not None and (self.loop.batch_size or count + 1) > count
        if not compiled.rows and len(batch) <= count and larger_follow:  # such as the scores of the baseline
            return self.forward(batch, self._fused.network)
        output = self.forward(batch, compiled)
        if not compiled.checked and self.precision == "float32":
            compiled.checked = matches(compiled, self.forward.images, self.clean_output)
            if not compiled.checked:
                raise BadOption(_WRONG)
        return output

    def _choose_precision(self) -> None:
        """Resolve "auto": bfloat16 if there is a fused copy and the device computes it faster, else float32."""
        self.precision = "float32"  # for the clean pass against which the fused copy is checked
        self.fast_network()
        if self._fused is not None and computes_bf16(self.forward.images.device):
            self.precision = "bf16" if self._runs_in_bf16() else "float32"
        note_option("precision", self.precision)

    def _runs_in_bf16(self) -> bool:
        """Return whether the copy runs in bfloat16, which operations on tensors of two types do not."""
        images = channels_last(self.forward.images)
        try:
            with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16):
                self.forward(images, self.fast_network())
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return False
        return True


def at_least_float32(tensor: Tensor) -> Tensor:
    """Detach a tensor and convert it to float32; float64 is kept.

    Errors   UnsupportedModel for complex numbers, whose imaginary part would be lost
    """
    if tensor.is_complex():
        raise UnsupportedModel(_COMPLEX.format("A tensor of the network"))
    tensor = tensor.detach() if not tensor.is_quantized else tensor.dequantize()
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def cell_axes(maps: Tensor) -> tuple[int, ...]:
    """Return the axes of maps [N, K, h, w] or [N, K, t, h, w] that run over the cells."""
    return tuple(range(2, maps.ndim))


def maps_of(layout: LayerLayout, tensor: Tensor) -> Tensor:
    """Return a layer's tensor as [N, K, h, w], or [N, K, t, h, w] for videos, in float32 or float64.

    Errors   NoSpatialOutput if it has no height and width; UnsupportedModel for complex numbers
    """
    if tensor.is_complex():
        raise UnsupportedModel(_COMPLEX.format(f"Layer {layout.name!r}"))
    maps = layout.to_maps(at_least_float32(tensor))
    if maps.ndim != 2 + len(layout.grid or (0, 0)):
        raise NoSpatialOutput(nothing_spatial(layout.name, tuple(tensor.shape)))
    return maps
