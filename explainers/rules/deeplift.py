"""DeepLIFT: finite differences from a baseline instead of gradients, operation by operation.

The network runs twice, on the baseline and on the image, through the same operations in the same order. The first run
records the inputs of every nonlinear operation on a tape. In the second run, the backward of each of them uses
multipliers m with  sum_i m_i Δx_i = Δy  exactly (deeplift_rules.py). Linear operations keep their gradient.

Every step is exact, so the attributions sum to score(x) − score(baseline).

Source   Shrikumar et al. 2017, section 3, arXiv:1704.02685
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.run import Run
from explainers.call.scores import at_least_float32
from explainers.dtypes import to_float64
from explainers.errors import BadOption, UnsupportedOperation
from explainers.findings import note_gradient, note_images, note_promised_sum
from explainers.nested import map_tensors
from explainers.rules.decompositions import DECOMPOSED
from explainers.rules.deeplift_rules import LAYERS, RULES, SELECTIONS, Rule, constant_weights, is_discrete, select
from explainers.rules.operations import STRUCTURE, Call, Interception, tensors
from explainers.rules.plain_output import refuse_failure, refuse_other_output
from explainers.rules.rectifiers.handwritten import HandwrittenReLUs

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

_OTHER_BASELINE = "Give another baseline: baseline='blur', 'noise' or 'mean', a number or a tensor."


class _Diverged(UnsupportedOperation):
    """Raised if image and baseline do not run through the same operations."""


class Rescale(Interception):
    """The mode of both runs: the baseline run records the tape; the image run, inside `replay`, reads it."""

    known = STRUCTURE | frozenset(_LINEAR.split()) | frozenset(_FACTORS)
    factors = _FACTORS

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, "DeepLIFT")
        self._replays = False
        self._tape: list[tuple[str, list[Tensor]]] = []
        self._at = 0
        self.rules = {name: self._record_or_replay(rule) for name, rule in RULES.items()}
        self.rules |= (
            DECOMPOSED
            | dict.fromkeys(LAYERS, constant_weights)
            | dict.fromkeys(SELECTIONS, self._record_or_replay(select, is_discrete))
        )

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Run a block that reads the tape to its end.

        Errors   UnsupportedOperation if control flow differs between input and baseline
        """
        self._replays = True
        try:
            with self:
                yield
        finally:
            self._replays = False
        if self._at < len(self._tape):
            raise self._divergence_error(self._tape[self._at][0])

    def release(self) -> None:
        super().release()
        self._tape.clear()

    def _record_or_replay(
        self, rule: Rule, chooses: Callable[[Tensor], bool] = lambda tensor: True
    ) -> Callable[[Call], Any]:
        """Return the rule, called in the image run with the chosen tensors of the same call in the baseline run."""

        def run(call: Call) -> Any:
            inputs = list(filter(chooses, call.tensors))
            if not inputs:
                return call.call_original()
            if not self._replays:
                self._tape.append((call.name, [tensor.detach().clone() for tensor in inputs]))
                return call.call_original()
            before = self._read_record(call.name, inputs)
            return rule(call, before) if call.depends_on_image else call.call_original()

        return run

    def _read_record(self, name: str, inputs: list[Tensor]) -> list[Tensor]:
        """Return the baseline's tensors of the same call; each entry is read once, and its memory released."""
        known, before = self._tape[self._at] if self._at < len(self._tape) else ("", [])
        if known != name or [tensor.shape for tensor in before] != [tensor.shape for tensor in inputs]:
            raise self._divergence_error(name)
        self._tape[self._at] = ("", [])
        self._at += 1
        return before

    def _divergence_error(self, name: str) -> _Diverged:
        return _Diverged(str(self.refuse(name, "whose control flow differs between input and baseline")))


def deep_lift_of(
    run: Run, batch: Tensor, baseline: Tensor, indices: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Return multipliers times (input − baseline), [B, C, H, W], and the score differences [B] to which they sum.

    Row b of the batch is a variant of image `indices[b]`.

    Errors   UnsupportedOperation naming operation and layer; BadOption for a baseline at which the network or the
             attributions are not finite
    """
    try:
        multipliers, scores, start, size = _multipliers(run, batch, baseline, indices)
    except _Diverged:
        # A network may cache results of its first pass (positions, masks), so that the second pass needs fewer
        # operations.
        multipliers, scores, start, size = _multipliers(run, batch, baseline, indices)
    attributions = at_least_float32(multipliers) * (at_least_float32(batch) - at_least_float32(baseline))
    _refuse_cancellation(attributions, scores, start, size)
    if indices is None:
        note_gradient(at_least_float32(multipliers))
        note_gap(attributions, scores - start, scores - start)
    return attributions, scores - start


def _multipliers(
    run: Run, batch: Tensor, baseline: Tensor, indices: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return the multipliers, the scores [B] of batch and baseline, and the largest magnitude of the outputs."""
    mode = Rescale(run.view.network)
    try:
        with refuse_failure(run, mode.method), mode, HandwrittenReLUs(), run.scoring.autocast():
            before = run.forward(baseline.clone())
        with torch.enable_grad():
            leaf = batch.detach().clone().requires_grad_()
            images = leaf.clone()  # cloned outside the mode, which detaches leaves
            with refuse_failure(run, mode.method), mode.replay(), HandwrittenReLUs() as relus, run.scoring.autocast():
                output = run.forward(images)
            refuse_other_output(run, batch, output, mode.method)
            if relus.others:
                raise mode.refuse(relus.describe())
            # The target class is chosen on the image; then the score is recorded and replayed like the network.
            run.scoring.score(map_tensors(output, Tensor.detach), indices)
            with mode, torch.no_grad():
                start = run.scoring.score(before, indices)
            with mode.replay():
                scores = run.scoring.score(output, indices)
            mode.check(scores)
            (multipliers,) = run.backward.vjp(scores.sum(), [leaf], note_bypass=False)
    finally:
        mode.release()
    outputs = [each for each in tensors((output, before)) if each.is_floating_point() and each.numel()]
    size = max((float(at_least_float32(each).abs().amax()) for each in outputs), default=0.0)
    return multipliers, at_least_float32(scores), at_least_float32(start), size


def _refuse_cancellation(attributions: Tensor, scores: Tensor, start: Tensor, size: float) -> None:
    """Raise an error for attributions that are not finite, or that cancel so much that only rounding errors remain."""
    if not bool(scores.isfinite().all()):
        return  # the network itself fails on the image; `explain` reports the layer
    if not bool(start.isfinite().all()):
        raise BadOption(
            f"The network's score is NaN or infinite on the baseline, but not on the image. {_OTHER_BASELINE}"
        )
    if not bool(attributions.isfinite().all()):
        raise BadOption(
            f"DeepLIFT's attributions from this baseline are NaN or infinite: an operation of the network is unbounded "
            f"between baseline and image. {_OTHER_BASELINE}"
        )
    # If a small score is the difference of two large outputs, it contains their rounding errors anyway.
    tolerance = torch.maximum(scores.abs(), start.abs()).clamp(min=size)
    gap = (attributions.flatten(1).sum(1) - (scores - start)).abs()
    rounding = attributions.flatten(1).abs().sum(1) * torch.finfo(attributions.dtype).eps
    lost = (gap > 0.01 * tolerance) & (rounding > 1e-3 * tolerance)
    if bool(lost.any()):
        index = int(lost.nonzero()[0])
        total, change = float(attributions[index].abs().sum()), float((scores - start)[index])
        raise BadOption(
            f"DeepLIFT's attributions from this baseline have a total magnitude of {total:.3g}, but the score changes "
            f"only by {change:.3g}: they cancel, and only rounding errors remain. {_OTHER_BASELINE} Or use float64: "
            f"model.double() and images.double()."
        )


def note_gap(attributions: Tensor, changes: Tensor, sizes: Tensor) -> None:
    """Note the change [N] of the score to which the attributions should sum, and each image for which they do not.

    A gap counts from 0.1% of `sizes` [N] on, the change from one baseline, or its mean magnitude over several.
    """
    note_promised_sum(changes)
    total, change = to_float64(attributions.flatten(1).sum(1)), to_float64(changes)
    note_images(
        "incomplete",
        (total - change).abs() > 1e-3 * to_float64(sizes).abs(),
        "The map sums to {total:.5g}, but the score changes by {expected:.5g} from the baseline. The cause is "
        "rounding, or a part of the network that is detached from the image.",
        total=total,
        expected=change,
    )
