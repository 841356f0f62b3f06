"""Explain why a value or a gradient of an experiment is NaN or infinite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saliscope.compute.lab import expressions, messages
from saliscope.compute.lab.engine import Outcome, Pass
from saliscope.compute.lab.expressions import Step, Value


def diagnosis(result: Outcome) -> str:
    """Return a message about the first tensor that is not finite, or an empty string.

    The forward pass is checked first, then the backward passes.
    """
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
    """Return the message for the first value that is not finite; its operands are finite."""
    result = values[step.name]
    operands = [values[operand] if isinstance(operand, str) else torch.tensor(operand) for operand in step.inputs]
    index = int((~result.isfinite()).flatten().nonzero()[0])
    entry = float(result.flatten()[index])
    is_reduction = result.shape == () and any(operand.shape != () for operand in operands)  # a mean or a sum
    entries = (
        [] if is_reduction else [float(operand.broadcast_to(result.shape).flatten()[index]) for operand in operands]
    )
    return messages.value_not_finite(step.name, expressions.source(step), _format(entry), _why(step.op, entries))


def _why(op: str, operands: list[float]) -> str:
    if op == "log":
        return messages.LOG_OF_ZERO if operands[0] == 0 else messages.LOG_OF_NEGATIVE
    if op == "sqrt":
        return messages.ROOT_OF_NEGATIVE
    if op == "/" and operands[1] == 0:
        return messages.ZERO_BY_ZERO if operands[0] == 0 else messages.DIVIDED_BY_ZERO
    if op == "^" and operands[0] == 0 and operands[1] < 0:
        return messages.DIVIDED_BY_ZERO
    if op == "^" and operands[0] < 0 and operands[1] != math.floor(operands[1]):
        return messages.FRACTIONAL_POWER
    return messages.OVERFLOW


def _gradient(step: Step, gradient: Tensor, gradients: Pass, result: Outcome, at: int) -> str:
    """Return the message for a gradient: an infinite derivative, the output of the hook, or an overflow."""
    text = _format(next(float(entry) for entry in gradient.flatten() if not math.isfinite(entry)))
    if at:
        return messages.gradient_not_finite(step.name, text, messages.HOOK_OVERFLOW)
    for use in result.plan.steps:
        for index, operand in enumerate(use.inputs):
            if operand == step.name and not _finite(gradients.edges.get((step.name, use.name, index))):
                return messages.gradient_not_finite(step.name, text, _slope(use, index, result.values))
    return messages.gradient_not_finite(step.name, text, messages.OVERFLOW)


def _slope(use: Step, index: int, values: dict[str, Tensor]) -> str:
    """Return why the derivative of an operation with respect to an operand is not finite."""
    operands = [_numbers(operand, values) for operand in use.inputs]
    if use.op == "^" and index == 1 and any(base < 0 for base in operands[0]):
        return messages.slope_by_exponent(expressions.source(use))
    if use.op in ("sqrt", "^") and index == 0 and 0 in operands[0]:
        return messages.infinite_slope(expressions.source(use))
    return messages.OVERFLOW


def _numbers(operand: str | Value, values: dict[str, Tensor]) -> list[float]:
    return (values[operand] if isinstance(operand, str) else torch.tensor(operand)).flatten().tolist()


def _format(value: float) -> str:
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
