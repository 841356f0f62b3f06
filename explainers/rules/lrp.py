"""One pass of LRP or excitation backprop: a forward pass with the rules, and a backward pass to the image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from explainers.call.run import Run
from explainers.call.scores import at_least_float32
from explainers.dtypes import to_float64
from explainers.errors import BadOption
from explainers.findings import note_finding, note_images, note_promised_sum
from explainers.nested import map_tensors
from explainers.rules.lrp_operations import Relevance
from explainers.rules.lrp_rules import RuleParameters
from explainers.rules.operations import with_custom_backward
from explainers.rules.plain_output import refuse_failure, refuse_other_output

MOST_CANCELLED = 100
"""The largest sum of |R_i|, in multiples of the score, that is not reported as cancellation."""


def relevance(run: Run, mode: Relevance, calmer: dict[str, Any], unbiased: dict[str, Any]) -> Tensor:
    """Compute the LRP relevance of every input value, [N, C, H, W], by a mode with a rule map.

    The relevance of the network's output is output times d score / d output, i.e. the score if the target is a class.
    Findings report what is absorbed on the way, with the remedy `unbiased`, and relevances that cancel, with `calmer`.

    Errors   BadOption if relevances are NaN or infinite although the scores are not
    """
    starts: list[Tensor] = []
    outputs: list[Tensor] = []

    def start(output: Tensor) -> Any:
        if not output.requires_grad:
            return output
        values = at_least_float32(output)

        def multiply(gradient: Tensor) -> list[Tensor]:
            starts.append(at_least_float32(gradient) * values)
            outputs.append(values)
            return [starts[-1].to(gradient.dtype)]

        return with_custom_backward(Tensor.clone, multiply, output)

    relevance, target_scores = _backward(run, mode, start)
    if mode.rule_map is not None:
        mode.rule_map.check()
    # Detections are not rows of images, even if there happens to be one for each image.
    if starts and all(output.ndim > 1 and len(output) == len(relevance) for output in starts):
        scores = sum((output.flatten(1).sum(1) for output in starts), torch.zeros(len(relevance)).to(relevance))
        _refuse_overflow(relevance, scores, calmer)
        nonlinear = _note_nonlinear(scores, target_scores)
        _note_absorbed(relevance, scores, mode, unbiased, nonlinear)
        _note_cancelled(relevance, scores, outputs, calmer)
    return relevance


def winning_probability(run: Run, contrast: bool) -> Tensor:
    """Compute the marginal winning probability of excitation backprop for every input value, [N, C, H, W].

    Layers have the rule z_plus without biases (Zhang et al. 2016, eq. 5). With `contrast`, negative evidence for the
    class in the last layer is subtracted from positive evidence.
    """
    mode = Relevance(run.view.network, "Excitation backprop", None, RuleParameters(zero_bias=True), contrast)
    probability, _ = _backward(run, mode, lambda output: output)
    share = 1 - to_float64(probability.flatten(1).sum(1))
    if not contrast:
        note_images(
            "lost",
            share > 0.01,
            "{share:.1%} of the probability was lost at neurons inside the network without excitatory input.",
            share=share,
        )
    return probability


def _backward(run: Run, mode: Relevance, start: Callable[[Tensor], Any]) -> tuple[Tensor, Tensor]:
    """Propagate from the scores to the image under `mode`, and return relevance and scores.

    `start` wraps the tensors of the network's output.
    """
    with torch.enable_grad():
        leaf = run.images.detach().clone().requires_grad_()
        images = leaf.clone()
        try:
            with refuse_failure(run, mode.method), mode:
                output = run.forward(images)
            mode.check(output)
        finally:
            mode.release()
        refuse_other_output(run, run.images, output, mode.method)
        scores = run.scoring.score(map_tensors(output, start))
        (relevance,) = run.backward.vjp(scores.sum(), [leaf], note_bypass=False)
    return at_least_float32(relevance), at_least_float32(scores)


def _note_nonlinear(starts: Tensor, scores: Tensor) -> Tensor:
    """Note the images whose relevance does not start from the score, since a target may not be linear; [N], bool."""
    start, score = to_float64(starts), to_float64(scores)
    nonlinear = (start - score).abs() > 0.01 * torch.maximum(start.abs(), score.abs())
    note_images(
        "nonlinear_target",
        nonlinear,
        "The target is not linear in the network's output, so the relevance starts from output times gradient, "
        "{start:.3g}, and not from the score {score:.3g}. Shares of the map have a meaning, its sum does not. Use the "
        "class as target to explain its logit.",
        start=start,
        score=score,
    )
    return nonlinear


def _refuse_overflow(relevance: Tensor, scores: Tensor, calmer: dict[str, Any]) -> None:
    broken = ~relevance.flatten(1).isfinite().all(1) & scores.isfinite()
    if bool(broken.any()):
        raise BadOption(
            f"The relevances of image {int(broken.nonzero()[0])} are NaN or infinite, but its score is not: "
            f"denominators of the rules are too close to 0. Use {_arguments(calmer)}, or a larger epsilon."
        )


def _note_absorbed(
    relevance: Tensor, scores: Tensor, mode: Relevance, unbiased: dict[str, Any], nonlinear: Tensor
) -> None:
    """Note the score, to which relevance should sum (conservation), and each image for which it does not.

    For `nonlinear` targets, `scores` is the relevance from which the pass started.
    """
    note_promised_sum(scores)
    parameters = mode.parameters
    absorbing = [
        "outputs without a contribution of their sign" if parameters.zero_bias else "biases and other constants",
        *mode.absorbing,
        *(["ε"] if parameters.epsilon else []),
    ]
    what = ", ".join(absorbing)
    for index, (total, score) in enumerate(zip(relevance.flatten(1).sum(1).tolist(), scores.tolist(), strict=True)):
        if not score or abs(share := 1 - total / score) <= 0.01:
            continue
        whole = "relevance at the output" if nonlinear[index] else "score"
        sentence = f"{what[0].upper()}{what[1:]} absorb {score - total:.3g} of the {whole} {score:.3g}: "
        sentence += f"the map sums to {total:.3g}."
        remedy: dict[str, Any] = {}
        if 0.5 < share <= 1:
            sentence = f"{sentence[:-1]}, and {100 * share:.5g}% of the {whole} is absorbed."
            if not parameters.zero_bias:
                sentence, remedy = f"{sentence} Use {_arguments(unbiased)} to exclude biases.", unbiased
        note_finding("absorbed", sentence, remedy, index, score=score, total=total, share=share)


def _note_cancelled(relevance: Tensor, scores: Tensor, outputs: list[Tensor], calmer: dict[str, Any]) -> None:
    """Note images whose relevances are so much larger than the score that mainly their differences remain."""
    sizes = relevance.flatten(1).abs().sum(1)
    largest = torch.stack([scores.abs(), *(output.flatten(1).abs().amax(1) for output in outputs)]).amax(0)
    note_images(
        "cancelled",
        to_float64(sizes) > MOST_CANCELLED * to_float64(largest),
        "Positive and negative relevances cancel: the sum of their sizes is {size:.3g} for a score of {score:.3g}. "
        f"Single values of the map are hardly evidence. Use {_arguments(calmer)}, or a larger epsilon.",
        calmer,
        size=sizes,
        score=scores,
    )


def _arguments(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())
