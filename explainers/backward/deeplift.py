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

from explainers.backward.decompositions import DECOMPOSED
from explainers.backward.deeplift_rules import LAYERS, RULES, SELECTIONS, Rule, constant_weights
from explainers.backward.operations import STRUCTURE, Call, Interception, tensors
from explainers.errors import BadOption, UnsupportedOperation
from explainers.findings import note_finding, note_gradient, note_promised_sum
from explainers.passes.run import Run, at_least_float32

_LINEAR = (
    "Add AdaptiveAvgPool2D AdaptiveAvgPool3D AvgPool2D AvgPool3D Col2Im Cumsum IndexAdd MkldnnAdaptiveAvgPool2D Mean "
    "Neg Rsub ScatterAdd Sub Sum SumToSize Trace UpsampleBicubic2D UpsampleBilinear2D UpsampleLinear1D "
    "UpsampleTrilinear3D"
)
_PRODUCTS = (
    "Bmm Convolution ConvolutionOverrideable CudnnBatchNorm CudnnConvolution CudnnConvolutionTranspose Dot Linear "
    "MiopenBatchNorm MiopenConvolution MkldnnConvolution Mm Mul Mv NativeBatchNorm"
)
_FACTORS: dict[str, tuple[tuple[int, ...], int]] = dict.fromkeys(_PRODUCTS.split(), ((0, 1), 1))
_FACTORS |= dict.fromkeys(("Addbmm", "Addmm", "Addmv", "Baddbmm"), ((1, 2), 1))
_FACTORS |= dict.fromkeys(("Div", "GridSampler2D", "GridSampler3D"), ((1,), 0))
KNOWN = STRUCTURE | frozenset(_LINEAR.split()) | frozenset(_FACTORS)

_OTHER_BASELINE = "Give another baseline: baseline='blur', 'noise' or 'mean', a number or a tensor."


class _Diverged(UnsupportedOperation):
    """Image and baseline did not run through the same operations."""


class Rescale(Interception):
    """The mode of both runs: the baseline's records the tape; the image's, inside `replaying`, reads it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, "DeepLIFT", KNOWN, _FACTORS)
        self._replays = False
        self._tape: list[tuple[str, list[Tensor]]] = []
        self._at = 0
        self.rules = {name: self._taped(rule) for name, rule in RULES.items()}
        self.rules |= DECOMPOSED | dict.fromkeys(LAYERS, constant_weights) | dict.fromkeys(SELECTIONS, self._select)

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
            raise self._diverged(self._tape[self._at][0])

    def forget(self) -> None:
        super().forget()
        self._tape.clear()

    def _taped(self, rule: Rule) -> Callable[[Call], Any]:
        def run(call: Call) -> Any:
            inputs = call.tensors
            if not self._replays:
                self._record(call.name, inputs)
                return call.call_original()
            before = self._recorded(call.name, inputs)
            return rule(call, before) if call.depends else call.call_original()

        return run

    def _select(self, call: Call) -> Any:
        """Linear where conditions and indices are those of the baseline."""
        chosen = [tensor for tensor in call.tensors if not (tensor.is_floating_point() or tensor.is_complex())]
        if not chosen:
            return call.call_original()
        if not self._replays:
            self._record(call.name, chosen)
            return call.call_original()
        before = self._recorded(call.name, chosen)
        if not call.depends:
            return call.call_original()
        if not all(map(torch.equal, chosen, before)):
            what = "indices" if chosen[0].dtype != torch.bool else "condition"
            verb = "differ" if what == "indices" else "differs"
            raise self.refuse(call.name, f"whose {what} {verb} between input and baseline")
        return call.call_original() if not call.in_place else call.out_of_place()(*call.tensors)

    def _record(self, name: str, inputs: list[Tensor]) -> None:
        self._tape.append((name, [tensor.detach().clone() for tensor in inputs]))

    def _recorded(self, name: str, inputs: list[Tensor]) -> list[Tensor]:
        """The baseline's tensors at the same place; each entry is read once, and its memory released."""
        known, before = self._tape[self._at] if self._at < len(self._tape) else ("", [])
        if known != name or [tensor.shape for tensor in before] != [tensor.shape for tensor in inputs]:
            raise self._diverged(name)
        self._tape[self._at] = ("", [])
        self._at += 1
        return before

    def _diverged(self, name: str) -> _Diverged:
        return _Diverged(str(self.refuse(name, "whose control flow differs between input and baseline")))


def deep_lift_of(
    run: Run, batch: Tensor, baseline: Tensor, pictures: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Multipliers times (input − baseline), [B, C, H, W], and the changes of the score [B] to which they sum.

    Row b of the batch is a variant of image `pictures[b]`.

    Errors   UnsupportedOperation naming operation and layer; BadOption for a baseline at which the network or the
             attributions are not finite
    """
    try:
        multipliers, scores, start, size = _multipliers(run, batch, baseline, pictures)
    except _Diverged:
        # A network may keep what its first pass computes (positions, masks): the second pass then needs fewer steps.
        multipliers, scores, start, size = _multipliers(run, batch, baseline, pictures)
    attributions = at_least_float32(multipliers) * (at_least_float32(batch) - at_least_float32(baseline))
    _refuse_lost(attributions, scores, start, size)
    if pictures is None:
        note_gradient(at_least_float32(multipliers))
        _note_gap(attributions, scores - start)
    return attributions, scores - start


def _multipliers(
    run: Run, batch: Tensor, baseline: Tensor, pictures: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor, float]:
    """The multipliers, the scores [B] of batch and baseline, and the largest value of the network's outputs."""
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
    outputs = [each for each in tensors((output, before)) if each.is_floating_point() and each.numel()]
    size = max((float(at_least_float32(each).abs().amax()) for each in outputs), default=0.0)
    return multipliers, at_least_float32(scores), at_least_float32(start), size


def _refuse_lost(attributions: Tensor, scores: Tensor, start: Tensor, size: float) -> None:
    """Refuse what is no attribution any more: values that are not finite, or that cancel beyond their rounding."""
    if not bool(scores.isfinite().all()):
        return  # the network itself fails on the image, which `explain` tells with the layer
    if not bool(start.isfinite().all()):
        raise BadOption(
            f"The network's score is NaN or infinite on the baseline, though not on the image. {_OTHER_BASELINE}"
        )
    if not bool(attributions.isfinite().all()):
        raise BadOption(
            f"DeepLIFT's attributions from this baseline are NaN or infinite: between it and the image an operation of "
            f"the network grows beyond any bound. {_OTHER_BASELINE}"
        )
    # Where two large outputs make a small score, a contrast, the rounding of the outputs is in it anyway.
    tolerance = torch.maximum(scores.abs(), start.abs()).clamp(min=size)
    gap = (attributions.flatten(1).sum(1) - (scores - start)).abs()
    rounding = attributions.flatten(1).abs().sum(1) * torch.finfo(attributions.dtype).eps
    lost = (gap > 0.01 * tolerance) & (rounding > 1e-3 * tolerance)
    if bool(lost.any()):
        picture = int(lost.nonzero()[0])
        total, change = float(attributions[picture].abs().sum()), float((scores - start)[picture])
        raise BadOption(
            f"DeepLIFT's attributions from this baseline have a size of {total:.3g} in all, for a score that changes "
            f"by {change:.3g}: they cancel, and rounding is what is left. {_OTHER_BASELINE} Or run it in float64: "
            f"model.double() and images.double()."
        )


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _note_gap(attributions: Tensor, changes: Tensor) -> None:
    note_promised_sum(changes)
    sums = attributions.flatten(1).sum(1).tolist()
    for picture, (total, change) in enumerate(zip(sums, changes.tolist(), strict=True)):
        if abs(total - change) > 1e-3 * abs(change):
            note_finding(
                "incomplete",
                f"The map sums to {total:.5g}, and the score changes by {change:.5g} from the baseline: rounding, or a "
                f"part of the network that is detached from the image.",
                picture=picture,
                total=total,
                expected=change,
            )
