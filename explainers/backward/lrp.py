"""One pass of relevance: forward with the rules in place, backward from the scores to the picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from explainers.backward.lrp_operations import Relevance
from explainers.backward.lrp_rules import RuleMap, RuleParameters
from explainers.backward.operations import with_custom_backward
from explainers.findings import note_finding
from explainers.passes.run import Run, at_least_float32


def relevance(run: Run, choose: RuleMap, settings: RuleParameters) -> Tensor:
    """LRP's relevance of every input value, [N, C, H, W]; what biases and ε absorb is noted.

    It begins at the network's output as output times d score / d output: the score itself for one class.
    """
    begun: list[Tensor] = []

    def enter(value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        known = at_least_float32(value)

        def vjp(arriving: Tensor) -> list[Tensor]:
            begun.append(at_least_float32(arriving) * known)
            return [begun[-1].to(arriving.dtype)]

        return with_custom_backward(Tensor.clone, vjp, value)

    found = _back(run, Relevance(run.network, "LRP", choose, settings), enter)
    choose.check()
    if begun and all(len(each) == len(found) for each in begun):
        _note_absorbed(found, sum((each.flatten(1).sum(1) for each in begun), torch.zeros(len(found)).to(found)))
    return found


def winning_probability(run: Run, contrast: bool) -> Tensor:
    """Excitation backprop's probability that an input value is reached from the class, [N, C, H, W].

    With `contrast` the last layer hands on what speaks for the class less what speaks against it.
    """
    found = _back(
        run, Relevance(run.network, "Excitation backprop", None, RuleParameters(), contrast), lambda value: value
    )
    for picture, kept in enumerate(found.flatten(1).sum(1).tolist()):
        if not contrast and kept < 0.99:
            note_finding(
                "lost",
                f"{1 - kept:.1%} of the probability ended inside the network, at neurons that nothing excites.",
                picture=picture,
            )
    return found


def _back(run: Run, mode: Relevance, enter: Callable[[Any], Any]) -> Tensor:
    with torch.enable_grad():
        leaf = run.images.detach().clone().requires_grad_()
        given = leaf.clone()
        try:
            with mode:
                output = run.forward(given)
            mode.check(output)
        finally:
            mode.forget()
        total = run.score(pytree.tree_map(enter, output)).sum()
        (found,) = run.vjp(total, [leaf], stated=False)
    return at_least_float32(found)


def _note_absorbed(found: Tensor, begun: Tensor) -> None:
    """Say for each picture how much of the score is in no input value (row P67 of the peers)."""
    for picture, (kept, score) in enumerate(zip(found.flatten(1).sum(1).tolist(), begun.tolist(), strict=True)):
        if score and abs(1 - kept / score) > 0.01:
            note_finding(
                "absorbed",
                f"Biases and ε hold {score - kept:.3g} of the score {score:.3g}: the map's values sum to {kept:.3g}.",
                picture=picture,
            )
