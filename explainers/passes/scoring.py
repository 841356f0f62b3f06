"""Scores of the images and of their variants. Many variants run in a faster copy, and in bfloat16 if requested."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from explainers.default_targets import resolve_target
from explainers.errors import BadOption, ExplainerError, is_out_of_memory
from explainers.findings import note_option, note_scores
from explainers.network.fast.compiled import is_requested
from explainers.network.fast.fused_copy import FusedCopy, channels_last, computes_bf16, fused_copy, matches
from explainers.network.forward_wrapper import ForwardWrapper
from explainers.network.rows.row_by_row import RowByRow
from explainers.outputs import scores_in
from explainers.passes import graph
from explainers.passes.forward import ForwardPasses
from explainers.passes.loop import Loop, now, split_on_out_of_memory
from explainers.passes.tensors import at_least_float32
from explainers.targets import Target, evaluate

_NOT_COMPILED = (
    "compile=True is not possible here: it needs a network in float32 with a 2-d convolution, called without forward=, "
    "and a target that uses its output. Omit compile=True."
)
_WRONG = "The scores of the compiled network differ from those of the network by more than rounding. Omit compile=True."
_WRAPPERS = (ForwardWrapper, RowByRow)
"""Networks without a fused copy."""


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
        self.target = self.target or resolve_target(self.requested, output, count, self.forward.view.owner)
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
        known = at_least_float32(whole) if isinstance(whole, Tensor) and is_scores else None
        note_scores(known, self.target, at_least_float32(scores))
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
        late = self._fused is None and self.loop is not None and not self.loop.affords(2 * len(images))
        if not self.many or partial or late or view.kind is not None or isinstance(view.network, _WRAPPERS):
            return None
        if self.clean_output is None:
            self.score_inputs()
        if self._fused is None and isinstance(self.clean_output, Tensor):
            self._fused = fused_copy(view.model, view.network, images, self.clean_output)
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
