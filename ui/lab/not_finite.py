"""Why a value or a gradient of an experiment is NaN or infinite, in one sentence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ui.lab import expressions, words

if TYPE_CHECKING:
    from torch import Tensor

    from ui.lab.engine import Outcome, Pass
    from ui.lab.expressions import Step, Value


def sentence(result: Outcome) -> str:
    """The first tensor in the forward pass, else in the backward pass, that is not finite, and why; "" if all are."""
    for step in result.plan.steps:
        if not _finite(result.values[step.name]):
            return _value(step, result.values)
    passes = [result.without, result.hooked, *([result.again] if result.again else [])]
    for at, gradients in enumerate(passes):
        for step in reversed(result.plan.steps):
            gradient = gradients.tensors.get(step.name)
            if gradient is not None and not _finite(gradient):
                return _gradient(step, gradient, gradients, result, at)
    return ""


def _finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(tensor.isfinite().all())


def _value(step: Step, values: dict[str, Tensor]) -> str:
    """The operands are finite, since this is the first value that is not."""
    import torch  # torch takes seconds to start

    result = values[step.name]
    operands = [values[each] if isinstance(each, str) else torch.tensor(each) for each in step.inputs]
    index = int((~result.isfinite()).flatten().nonzero()[0])
    entry = float(result.flatten()[index])
    single = result.shape == () and any(each.shape != () for each in operands)  # a mean or a sum
    known = [] if single else [float(each.broadcast_to(result.shape).flatten()[index]) for each in operands]
    return words.value_not_finite(step.name, expressions.source(step), _shown(entry), _why(step.op, known))


def _why(op: str, operands: list[float]) -> str:
    if op == "log":
        return words.LOG_OF_ZERO if operands[0] == 0 else words.LOG_OF_NEGATIVE
    if op == "sqrt":
        return words.ROOT_OF_NEGATIVE
    if op == "/" and operands[1] == 0:
        return words.ZERO_BY_ZERO if operands[0] == 0 else words.DIVIDED_BY_ZERO
    if op == "^" and operands[0] == 0 and operands[1] < 0:
        return words.DIVIDED_BY_ZERO
    if op == "^" and operands[0] < 0 and operands[1] != math.floor(operands[1]):
        return words.FRACTIONAL_POWER
    return words.OVERFLOW


def _gradient(step: Step, gradient: Tensor, gradients: Pass, result: Outcome, at: int) -> str:
    """All values are finite: a derivative is infinite, the hook makes it so, or numbers grow too large."""
    shown = _shown(next(float(entry) for entry in gradient.flatten() if not math.isfinite(entry)))
    if at:
        return words.gradient_not_finite(step.name, shown, words.HOOK_OVERFLOW)
    for use in result.plan.steps:
        for place, operand in enumerate(use.inputs):
            if operand == step.name and not _finite(gradients.edges.get((step.name, use.name, place))):
                return words.gradient_not_finite(step.name, shown, _slope(use, place, result.values))
    return words.gradient_not_finite(step.name, shown, words.OVERFLOW)


def _slope(use: Step, place: int, values: dict[str, Tensor]) -> str:
    """Why the derivative of an operation by one of its operands is not finite."""
    operands = [_numbers(each, values) for each in use.inputs]
    if use.op == "^" and place == 1 and any(base < 0 for base in operands[0]):
        return words.slope_by_exponent(expressions.source(use))
    if use.op in ("sqrt", "^") and place == 0 and 0 in operands[0]:
        return words.infinite_slope(expressions.source(use))
    return words.OVERFLOW


def _numbers(operand: str | Value, values: dict[str, Tensor]) -> list[float]:
    import torch  # torch takes seconds to start

    return (values[operand] if isinstance(operand, str) else torch.tensor(operand)).flatten().tolist()


def _shown(value: float) -> str:
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
