"""DeepLIFT: finite differences from a baseline take the place of gradients, operation by operation.

The network runs twice, on the baseline and on the image, through the same operations in the same order. The first run
records the inputs of every nonlinear operation on a tape; in the second, each of them gets a backward of multipliers m
with  sum_i m_i Δx_i = Δy  exactly (deeplift_rules.py). Linear operations keep their gradient.

Every step is exact, so the attributions sum to score(x) − score(baseline).

Source   Shrikumar et al. 2017, section 3, arXiv:1704.02685
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from explainers.backward.deeplift_rules import LAYERS, RULES, Rule, constant_weights
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

_CONTROL_FLOW = "whose control flow differs between input and baseline"


class Rescale(Interception):
    """The mode of both runs: the baseline's records the tape; the image's, inside `replaying`, reads it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, "DeepLIFT", KNOWN)
        self._replays = False
        self._tape: list[tuple[str, list[Tensor]]] = []
        self._at = 0
        self.rules = {name: self._taped(rule) for name, rule in RULES.items()}
        self.rules |= {"multi_head_attention_forward": multi_head} | dict.fromkeys(LAYERS, constant_weights)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Read the tape, to its end.

        Errors   UnsupportedOperation where control flow differs between input and baseline
        """
        self._replays = True
        try:
            with self:
                yield
        finally:
            self._replays = False
        if self._at < len(self._tape):
            raise self.refuse(self._tape[self._at][0], _CONTROL_FLOW)

    def forget(self) -> None:
        super().forget()
        self._tape.clear()

    def _taped(self, rule: Rule) -> Callable[[Call], Any]:
        def run(call: Call) -> Any:
            inputs = call.tensors
            if not self._replays:
                self._tape.append((call.name, [tensor.detach().clone() for tensor in inputs]))
                return call.call_original()
            name, before = self._tape[self._at] if self._at < len(self._tape) else ("", [])
            if name != call.name or [t.shape for t in before] != [t.shape for t in inputs]:
                raise self.refuse(call.name, _CONTROL_FLOW)
            # Each entry is read once, and its memory released.
            self._tape[self._at] = ("", [])
            self._at += 1
            return rule(call, before) if call.depends else call.call_original()

        return run


def deep_lift_of(run: Run, batch: Tensor, baseline: Tensor, pictures: Sequence[int] | None = None) -> Tensor:
    """Multipliers times (input − baseline), [B, C, H, W]; row b of the batch is a variant of image `pictures[b]`."""
    mode = Rescale(run.network)
    try:
        with mode, run.autocast():
            before = run.forward(baseline.clone())
        with torch.enable_grad():
            leaf = batch.detach().clone().requires_grad_()
            images = leaf.clone()  # not under the mode, which detaches leaves
            with mode.replaying(), run.autocast():
                output = run.forward(images)
            # The target class is the image's; then its score is recorded and replayed as the network was.
            run.score(pytree.tree_map(_detached, output), pictures)
            with mode, torch.no_grad():
                start = run.score(before, pictures)
            with mode.replaying():
                scores = run.score(output, pictures)
            mode.check(scores)
            (multipliers,) = run.vjp(scores.sum(), [leaf], note_bypass=False)
    finally:
        mode.forget()
    attributions = at_least_float32(multipliers) * (at_least_float32(batch) - at_least_float32(baseline))
    if pictures is None:
        note_gradient(at_least_float32(multipliers))
        _note_gap(attributions, at_least_float32(scores) - at_least_float32(start))
    return attributions


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _note_gap(attributions: Tensor, changes: Tensor) -> None:
    sums = attributions.flatten(1).sum(1).tolist()
    for picture, (total, change) in enumerate(zip(sums, changes.tolist(), strict=True)):
        if abs(total - change) > 1e-3 * abs(change):
            note_finding(
                "incomplete",
                f"The map sums to {total:.5g}, and the score changes by {change:.5g} from the baseline: rounding, or a "
                f"part of the network that is detached from the image.",
                picture=picture,
            )
