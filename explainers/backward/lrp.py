"""One pass of LRP or excitation backprop: a forward pass with the rules, and a backward pass to the image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from explainers.backward.lrp_operations import Relevance
from explainers.backward.lrp_rules import RuleMap, RuleParameters
from explainers.backward.operations import with_custom_backward
from explainers.findings import note_finding, note_promised_sum
from explainers.passes.run import Run
from explainers.passes.tensors import at_least_float32


def relevance(run: Run, rule_map: RuleMap, parameters: RuleParameters) -> Tensor:
    """Compute the LRP relevance of every input value, [N, C, H, W]; a finding reports what biases and ε absorb.

    The relevance of the network's output is output times d score / d output, i.e. the score if the target is a class.
    """
    starts: list[Tensor] = []

    def start(output: Any) -> Any:
        if not (isinstance(output, Tensor) and output.requires_grad):
            return output
        values = at_least_float32(output)

        def multiply(gradient: Tensor) -> list[Tensor]:
            starts.append(at_least_float32(gradient) * values)
            return [starts[-1].to(gradient.dtype)]

        return with_custom_backward(Tensor.clone, multiply, output)

    relevance = _backward(run, Relevance(run.view.network, "LRP", rule_map, parameters), start)
    rule_map.check()
    if starts and all(len(output) == len(relevance) for output in starts):
        scores = [output.flatten(1).sum(1) for output in starts]
        _note_absorbed(relevance, sum(scores, torch.zeros(len(relevance)).to(relevance)))
    return relevance


def winning_probability(run: Run, contrast: bool) -> Tensor:
    """Compute the marginal winning probability of excitation backprop for every input value, [N, C, H, W].

    With `contrast`, negative evidence for the class in the last layer is subtracted from positive evidence.
    """
    mode = Relevance(run.view.network, "Excitation backprop", None, RuleParameters(), contrast)
    probability = _backward(run, mode, lambda output: output)
    for index, total in enumerate(probability.flatten(1).sum(1).tolist()):
        if not contrast and total < 0.99:
            note_finding(
                "lost",
                f"{1 - total:.1%} of the probability was lost at neurons inside the network without excitatory input.",
                image=index,
                share=1 - total,
            )
    return probability


def _backward(run: Run, mode: Relevance, start: Callable[[Any], Any]) -> Tensor:
    """Propagate from the scores to the image under `mode`; `start` wraps the network's outputs."""
    with torch.enable_grad():
        leaf = run.images.detach().clone().requires_grad_()
        images = leaf.clone()
        try:
            with mode:
                output = run.forward(images)
            mode.check(output)
        finally:
            mode.release()
        total = run.scoring.score(pytree.tree_map(start, output)).sum()
        (relevance,) = run.backward.vjp(total, [leaf], note_bypass=False)
    return at_least_float32(relevance)


def _note_absorbed(relevance: Tensor, scores: Tensor) -> None:
    """Note the score, to which relevance should sum (conservation), and each image for which it does not."""
    note_promised_sum(scores)
    for index, (total, score) in enumerate(zip(relevance.flatten(1).sum(1).tolist(), scores.tolist(), strict=True)):
        if score and abs(1 - total / score) > 0.01:
            note_finding(
                "absorbed",
                f"Biases and ε absorb {score - total:.3g} of the score {score:.3g}: the map sums to {total:.3g}.",
                image=index,
                score=score,
                total=total,
            )
