"""DeepLIFT: finite differences from a baseline take the place of gradients, operation by operation.

The network runs twice, with the baseline and with the picture, through the same operations in the same order. The first
run leaves the inputs of all that is not linear on a tape; in the second, each such operation gets a way back made of
multipliers m with  sum_i m_i Δx_i = Δy  exactly (deeplift_rules.py).

What is linear keeps its gradient. As each step is exact, the attributions sum to score(x) − score(baseline).

Source   Shrikumar et al. 2017, section 3, arXiv:1704.02685
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from explainers.backward.deeplift_rules import LAYERS, RULES, Rule, fixed_weights
from explainers.backward.operations import STRUCTURE, Call, Interception, multi_head
from explainers.findings import note_finding, note_gradient
from explainers.passes.run import Run, at_least_float32

_LINEAR = (
    "Add Addbmm Addmm AdaptiveAvgPool2D AdaptiveAvgPool3D AvgPool2D AvgPool3D Baddbmm Bmm Convolution "
    "ConvolutionOverrideable CudnnBatchNorm CudnnConvolution CudnnConvolutionTranspose Cumsum Div Linear "
    "MiopenBatchNorm MiopenConvolution MkldnnAdaptiveAvgPool2D MkldnnConvolution Mean Mm Mul Mv NativeBatchNorm Neg "
    "Rsub Sub Sum SumToSize UpsampleBicubic2D UpsampleBilinear2D UpsampleLinear1D UpsampleTrilinear3D"
)
KNOWN = STRUCTURE | frozenset(_LINEAR.split())

_OTHER_WAY = "where the picture takes another way through it than the baseline"


class Rescale(Interception):
    """The mode of both runs: the baseline's fills the tape, the picture's, inside `replaying`, reads it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, "DeepLIFT", KNOWN)
        self._replays = False
        self._tape: list[tuple[str, list[Tensor]]] = []
        self._at = 0
        self.rules = {name: self._taped(rule) for name, rule in RULES.items()}
        self.rules |= {"multi_head_attention_forward": multi_head} | dict.fromkeys(LAYERS, fixed_weights)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Read the tape, and to its end.

        Errors   UnsupportedOperation where the picture takes another way through the network than the baseline
        """
        self._replays = True
        try:
            with self:
                yield
        finally:
            self._replays = False
        if self._at < len(self._tape):
            raise self.refuse(self._tape[self._at][0], _OTHER_WAY)

    def forget(self) -> None:
        super().forget()
        self._tape.clear()

    def _taped(self, rule: Rule) -> Callable[[Call], Any]:
        def run(call: Call) -> Any:
            given = call.tensors
            if not self._replays:
                self._tape.append((call.name, [each.detach().clone() for each in given]))
                return call.call_original()
            name, before = self._tape[self._at] if self._at < len(self._tape) else ("", [])
            if name != call.name or [t.shape for t in before] != [t.shape for t in given]:
                raise self.refuse(call.name, _OTHER_WAY)
            # Each entry is read once: its memory is free again when its rule has it.
            self._tape[self._at] = ("", [])
            self._at += 1
            return rule(call, before) if call.depends else call.call_original()

        return run


def deep_lift_of(run: Run, batch: Tensor, baseline: Tensor, pictures: Sequence[int] | None = None) -> Tensor:
    """Multiplier times change from the baseline, [B, C, H, W], for variants of `pictures` in the batch."""
    mode = Rescale(run.network)
    try:
        with mode, run.autocast():
            before = run.forward(baseline.clone())
        with torch.enable_grad():
            leaf = batch.detach().clone().requires_grad_()
            given = leaf.clone()
            with mode.replaying(), run.autocast():
                output = run.forward(given)
            # The classes are the picture's own; then its score goes the same two ways as the network did.
            run.score(pytree.tree_map(_detached, output), pictures)
            with mode, torch.no_grad():
                start = run.score(before, pictures)
            with mode.replaying():
                scores = run.score(output, pictures)
            mode.check(scores)
            (multipliers,) = run.vjp(scores.sum(), [leaf], stated=False)
    finally:
        mode.forget()
    found = at_least_float32(multipliers) * (at_least_float32(batch) - at_least_float32(baseline))
    if pictures is None:
        note_gradient(at_least_float32(multipliers))
        _note_gap(found, at_least_float32(scores) - at_least_float32(start))
    return found


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _note_gap(found: Tensor, change: Tensor) -> None:
    for picture, (total, whole) in enumerate(zip(found.flatten(1).sum(1).tolist(), change.tolist(), strict=True)):
        if abs(total - whole) > 1e-3 * abs(whole):
            note_finding(
                "incomplete",
                f"The map sums to {total:.5g}, and the score changes by {whole:.5g} from the baseline: rounding, or a "
                f"part of the network that is cut off from the picture.",
                picture=picture,
            )
