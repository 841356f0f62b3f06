"""Computations of the gradient lab: experiments on an expression, and gradient norms along a network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import explainers
from saliscope.compute.lab import expressions
from saliscope.compute.lab.experiments import Plan
from saliscope.compute.lab.expressions import Step


@dataclass
class Pass:
    """The gradients of a backward pass: by tensor, and by edge (tensor, operation, index among its inputs)."""

    tensors: dict[str, Tensor | None] = field(default_factory=dict)
    edges: dict[tuple[str, str, int], Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Values, and gradients without the hook, with the hook, and after the second pass (if the plan has one)."""

    plan: Plan
    values: dict[str, Tensor]
    without: Pass
    hooked: Pass
    again: Pass | None


def run(plan: Plan) -> Outcome:
    """Run an experiment once without the hook and once with it."""
    values, without, _ = _run_pass(plan, hooked=False)
    _, hooked, again = _run_pass(plan, hooked=True)
    return Outcome(plan, values, without, hooked, again)


def _run_pass(plan: Plan, *, hooked: bool) -> tuple[dict[str, Tensor], Pass, Pass | None]:
    with torch.enable_grad():
        tensors, edges = _build_graph(plan.steps)
    recorded = Pass()
    inner = {step.name for step in plan.steps if step.value is None}

    def record(into: dict[Any, Any], key: Any) -> Callable[[Tensor], None]:
        return lambda gradient: into.update({key: gradient.detach().clone()})

    with ExitStack() as stack:
        hook = stack.enter_context(ExitStack())
        if hooked:
            change = _change(plan.hook, plan.amount)
            hook.enter_context(explainers.edit_gradients({tensors[plan.where]: change}))
        # Entered after the hook to record its output.
        stack.enter_context(explainers.edit_gradients({tensors[n]: record(recorded.tensors, n) for n in inner}))
        stack.enter_context(explainers.edit_gradients({t: record(recorded.edges, key) for key, t in edges.items()}))
        first = _backward(plan, tensors, recorded, plan.seed, retain=bool(plan.again))
        if not (hooked and plan.again):
            return {name: t.detach() for name, t in tensors.items()}, first, None
        recorded.tensors.clear()
        recorded.edges.clear()
        if plan.again == "removed":
            hook.close()
            for step in plan.steps:
                if step.value is not None:
                    tensors[step.name].grad = None
        again = _backward(plan, tensors, recorded, plan.second, retain=False)
    return {name: t.detach() for name, t in tensors.items()}, first, again


def _build_graph(steps: list[Step]) -> tuple[dict[str, Tensor], dict[tuple[str, str, int], Tensor]]:
    """Build the graph; each use of a tensor is a separate view, whose gradient is that of the edge."""
    tensors: dict[str, Tensor] = {}
    edges: dict[tuple[str, str, int], Tensor] = {}
    for step in steps:
        if step.value is not None:
            tensors[step.name] = torch.tensor(step.value, dtype=torch.float32, requires_grad=True)
            continue
        operands: list[Any] = []
        for index, operand in enumerate(step.inputs):
            if isinstance(operand, str):
                view = tensors[operand].view_as(tensors[operand])
                edges[operand, step.name, index] = view
                operands.append(view)
            else:
                operands.append(torch.tensor(operand, dtype=torch.float32) if isinstance(operand, tuple) else operand)
        tensors[step.name] = _apply(step.op, operands)
    return tensors, edges


def _apply(op: str, operands: list[Any]) -> Tensor:
    if op in expressions.FUNCTIONS:
        return getattr(operands[0], op)()
    return expressions.OPERATORS[op](*operands) if len(operands) > 1 else -operands[0]


def _change(kind: str, amount: float) -> Callable[[Tensor], Tensor | None]:
    """Return the hook as a function of the gradient (None keeps it), equivalent to `experiments.HOOK_CODE`."""
    changes: dict[str, Callable[[Tensor], Tensor | None]] = {
        "record": lambda g: None,
        "scale": lambda g: g * amount,
        "clip_value": lambda g: g.clamp(-amount, amount),
        "clip_norm": lambda g: g * (amount / g.norm().clamp(min=amount)),
        "zeros": torch.zeros_like,
        "square": lambda g: g**2,
        "negate": lambda g: -g,
    }
    return changes[kind]


def _backward(plan: Plan, tensors: dict[str, Tensor], recorded: Pass, seed: Any, *, retain: bool) -> Pass:
    """Run one backward pass and return its gradients; those of leaves are read from `.grad`."""
    result = tensors[plan.result.name]
    start = torch.ones_like(result) if seed is None else torch.tensor(seed, dtype=torch.float32)
    result.backward(start, retain_graph=retain)
    gradients = Pass({step.name: recorded.tensors.get(step.name) for step in plan.steps}, dict(recorded.edges))
    for step in plan.steps:
        if step.value is not None:
            leaf = tensors[step.name].grad
            gradients.tensors[step.name] = None if leaf is None else leaf.detach().clone()
    return gradients
