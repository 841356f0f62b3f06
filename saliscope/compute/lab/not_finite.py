"""Explain why a value or a gradient of an experiment is NaN or infinite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saliscope.compute.lab import expressions
from saliscope.compute.lab.engine import Outcome, Pass
from saliscope.compute.lab.expressions import Step, Value

LARGEST = "3.4e38, the largest number in single precision"


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
    value = f"{step.name} = {expressions.source(step)} is {_format(entry)}: {_why(step.op, entries)}"
    return f"{value}. Gradients that pass through it are not meaningful."


def _why(op: str, operands: list[float]) -> str:
    if op == "log":
        zero = operands[0] == 0
        return "the logarithm of 0 is not finite" if zero else "a negative number has no real logarithm"
    if op == "sqrt":
        return "a negative number has no real square root"
    if op == "/" and operands[0] == operands[1] == 0:
        return "0 / 0 is undefined"
    if (op == "/" and operands[1] == 0) or (op == "^" and operands[0] == 0 and operands[1] < 0):
        return "division by 0"
    if op == "^" and operands[0] < 0 and operands[1] != math.floor(operands[1]):
        return "a negative number has no real power with a fractional exponent"
    return f"the result exceeds {LARGEST}"


def _gradient(step: Step, gradient: Tensor, gradients: Pass, result: Outcome, at: int) -> str:
    """Return the message for a gradient: an infinite derivative, the output of the hook, or an overflow."""
    text = _format(next(float(entry) for entry in gradient.flatten() if not math.isfinite(entry)))
    uses = ((use, index) for use in result.plan.steps for index, each in enumerate(use.inputs) if each == step.name)
    broken = (pair for pair in uses if not _finite(gradients.edges.get((step.name, pair[0].name, pair[1]))))
    if at:
        why = f"the output of the hook exceeds {LARGEST}"
    elif first := next(broken, None):
        why = _slope(*first, result.values)
    else:
        why = f"the result exceeds {LARGEST}"
    return f"The gradient at {step.name} is {text}: {why}."


def _slope(use: Step, index: int, values: dict[str, Tensor]) -> str:
    """Return why the derivative of an operation with respect to an operand is not finite."""
    operands = [_numbers(operand, values) for operand in use.inputs]
    if use.op == "^" and index == 1 and any(base < 0 for base in operands[0]):
        what = f"the derivative of {expressions.source(use)} with respect to its exponent"
        return f"{what} needs the logarithm of a negative number"
    if use.op in ("sqrt", "^") and index == 0 and 0 in operands[0]:
        return f"the derivative of {expressions.source(use)} at 0 is infinite"
    return f"the result exceeds {LARGEST}"


def _numbers(operand: str | Value, values: dict[str, Tensor]) -> list[float]:
    return (values[operand] if isinstance(operand, str) else torch.tensor(operand)).flatten().tolist()


def _format(value: float) -> str:
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
