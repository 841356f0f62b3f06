"""Experiments of the gradient lab: the gallery, user-defined experiments, and their PyTorch code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saliscope import limits
from saliscope.compute.lab import expressions, messages
from saliscope.compute.lab.expressions import Refusal, Step, Value

KINDS = tuple(name for name, *_ in messages.HOOKS)
LONGEST = 200
SMALLEST = 1e-12
AMOUNTS = {
    name: (SMALLEST if name.startswith("clip") else -limits.EXPRESSION_LARGEST, limits.EXPRESSION_LARGEST)
    for name, _, label in messages.HOOKS
    if label
}
"""The range of the number of each hook that takes a number."""


@dataclass(frozen=True)
class Experiment:
    """An expression, a hook on one of its tensors, the upstream gradient, and an optional second backward pass."""

    program: str
    where: str = ""
    hook: str = "record"
    amount: float = 1.0
    seed: str = ""
    """Upstream gradient; ones if empty."""
    again: str = ""
    second: str = ""
    """Upstream gradient of the second pass."""


GALLERY = {
    "double": Experiment("v = (0, 0, 0)", "v", "scale", 2.0, "(1, 2, 3)", "removed", "(1, 2, 3)"),
    "square": Experiment("v = (7, 8, 9)\ny = 2 * v^2", "y", "record", 1.0, "(1, 2, 3)"),
    "chain": Experiment("x = [[1, 2], [3, 4]]\ny = x^2 + 1\nz = mean(y^2)", "y"),
    "mean": Experiment("x = (2, 2, 2, 2)\nz = mean(x^2)", "x", "scale", 20200910.0, "", "removed"),
    "product": Experiment("x = 3\ny = 5\na = x + y\nb = x * y\nc = a * b", "a"),
    "squared": Experiment("v = (2, 2, 2)", "v", "square", 1.0, "(1, 1, 2)", "keep", "(1, 1, 1)"),
    "shared": Experiment("m1 = 1\nm2 = 2\nm3 = 4\nx1 = m1 * m2\nx2 = x1 * m3\ny = x1 + x2", "x1"),
}


@dataclass(frozen=True)
class Plan:
    """A parsed and checked experiment."""

    steps: list[Step]
    where: str
    hook: str
    amount: float
    seed: Value | None
    again: str
    second: Value | None
    notes: tuple[str, ...] = ()

    @property
    def result(self) -> Step:
        """The last step, where the backward pass starts."""
        return self.steps[-1]


def parse_form(data: Any) -> Experiment:
    """Parse an experiment as sent by the browser.

    Errors   Refusal for wrong types, unknown choices, overlong texts, and numbers out of range
    """
    data = data if isinstance(data, Mapping) else {}
    texts = {name: data.get(name, "") for name in ("program", "where", "hook", "seed", "again", "second")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise Refusal(messages.BAD_FORM)
    for name, text in texts.items():
        if len(text) > (10 * limits.EXPRESSION_LENGTH if name == "program" else 2 * LONGEST):
            raise Refusal(messages.too_long(len(text)))
    if texts["hook"] not in KINDS or texts["again"] not in dict(messages.AGAIN):
        raise Refusal(messages.BAD_FORM)
    return Experiment(**texts, amount=_amount(texts["hook"], data.get("amount")))


def _amount(hook: str, value: Any) -> float:
    """Return the number of the hook, or 1 for a hook without a number."""
    if hook not in AMOUNTS:
        return 1.0
    low, high = AMOUNTS[hook]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise Refusal(messages.amount_range(hook, low, high), "amount")
    return float(value)


def make_plan(experiment: Experiment) -> Plan:
    """Parse the expressions of an experiment and check them.

    Errors   Refusal
    """
    steps = expressions.parse(experiment.program)
    names, notes = [step.name for step in steps], []
    where = experiment.where
    if where not in names:
        where = next(step.name for step in steps if step.value is not None)
        if experiment.where:
            name = messages.short(experiment.where)
            notes.append(f"The expression has no {name}, so the hook was moved to {where}.")
    again = experiment.again
    seed = _seed("seed", experiment.seed, steps[-1].shape)
    second = _seed("second", experiment.second, steps[-1].shape) if again else None
    return Plan(steps, where, experiment.hook, experiment.amount, seed, again, second, tuple(notes))


def _seed(field: str, text: str, shape: tuple[int, ...]) -> Value | None:
    """Return the upstream gradient, or None for ones. A single number applies to all elements."""
    if not text.strip():
        return None
    try:
        value = expressions.parse_value(text)
    except Refusal as refusal:
        raise Refusal(f"In the upstream gradient: {refusal}", field) from None
    if isinstance(value, float):
        return fill(shape, value)
    if expressions.shape_of(value) != shape:
        given, wanted = map(expressions.format_shape, (expressions.shape_of(value), shape))
        raise Refusal(
            f"The upstream gradient has shape {given}, but the result has shape {wanted}. Use the shape of the result, "
            "or one number for all elements.",
            field,
        )
    return value


def fill(shape: tuple[int, ...], value: float) -> Value:
    """Return a value of this shape with the same number everywhere."""
    return tuple(fill(shape[1:], value) for _ in range(shape[0])) if shape else value


# PyTorch code

HOOK_CODE = {
    "record": "",
    "scale": "g * {amount}",
    "clip_value": "g.clamp(-{amount}, {amount})",
    "clip_norm": "g * ({amount} / g.norm().clamp(min={amount}))",
    "zeros": "torch.zeros_like(g)",
    "square": "g ** 2",
    "negate": "-g",
}


def code(plan: Plan) -> str:
    """Return the experiment as a PyTorch script, in which `grads` has the gradients of the non-leaf tensors."""
    inner = [step.name for step in plan.steps if step.value is None]
    leaf_grads = [f"{step.name}.grad" for step in plan.steps if step.value is not None]
    lines = ["import torch", "", *map(line, plan.steps), ""]
    change = HOOK_CODE[plan.hook].format(amount=_number(plan.amount))
    removed = plan.again == "removed"
    if change:
        lines.append(f"{'handle = ' if removed else ''}{plan.where}.register_hook(lambda g: {change})")
    if inner:  # registered after the hook above to receive its output
        lines += ["grads = {}", f"for name, t in {{{', '.join(f'{n!r}: {n}' for n in inner)}}}.items():"]
        lines.append("    t.register_hook(lambda g, name=name: grads.update({name: g}))")
    lines.append(_backward(plan.result, plan.seed, bool(plan.again) and bool(inner)))
    if plan.again:
        lines.append("")
        if removed:
            lines += ["handle.remove()"] if change else []
            lines.append(" = ".join([*leaf_grads, "None"]))
        lines.append(_backward(plan.result, plan.second, False))
    lines.append(f"print({', '.join([*leaf_grads, *(['grads'] if inner else [])])})")
    return "\n".join(lines)


def line(step: Step) -> str:
    """Return one step as a line of PyTorch."""
    if step.value is not None:
        return f"{step.name} = torch.tensor({_tensor(step.value)}, requires_grad=True)"
    operands = [operand if isinstance(operand, str) else _operand(operand) for operand in step.inputs]
    if step.op == "-" and len(operands) == 1:
        return f"{step.name} = -{operands[0]}"
    if step.op in expressions.FUNCTIONS:
        return f"{step.name} = {operands[0]}.{step.op}()"
    op = "**" if step.op == "^" else step.op
    # Unary minus has lower precedence than **, so a negative base needs brackets.
    left = f"({operands[0]})" if op == "**" and operands[0].startswith("-") else operands[0]
    return f"{step.name} = {left} {op} {operands[1]}"


def _backward(result: Step, seed: Value | None, retain: bool) -> str:
    arguments = []
    if seed is not None:
        arguments.append(f"torch.tensor({_tensor(seed)})")
    elif result.shape:
        arguments.append(f"torch.ones({', '.join(map(str, result.shape))})")
    if retain:
        arguments.append("retain_graph=True")
    return f"{result.name}.backward({', '.join(arguments)})"


def _operand(value: Value) -> str:
    return _number(value) if isinstance(value, float) else f"torch.tensor({_tensor(value)})"


def _tensor(value: Value) -> str:
    """Format a value with floats, so that torch does not infer an integer dtype."""
    return f"[{', '.join(map(_tensor, value))}]" if isinstance(value, tuple) else repr(value)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
