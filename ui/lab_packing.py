"""The gradient lab's answers as the dictionaries that its scripts read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ui import experiments, expressions
from ui import lab_words as words
from ui.experiments import Plan
from ui.lab_engine import Outcome, Pass

if TYPE_CHECKING:
    from torch import Tensor


def outcome(found: Outcome, ident: int) -> dict[str, Any]:
    """An experiment: every tensor and every edge with its gradients, and the code."""
    plan = found.plan
    return {
        "id": ident,
        "line": " ".join([*plan.notes, words.ran(plan.hook, plan.where, plan.result.name)]),
        "where": plan.where,
        "names": [{"name": step.name, "text": _text(step)} for step in plan.steps],
        "again": found.again is not None,
        "tensors": [_tensor(step, found) for step in plan.steps],
        "edges": [_edge(key, found) for key in _keys(plan)],
        "result": {"name": plan.result.name, "seed": _seed(plan)},
        "code": experiments.code(plan),
    }


def refusal(sentence: str, ident: int) -> dict[str, Any]:
    """What was refused; the script keeps the former result."""
    return {"id": ident, "error": sentence}


def waiting(sentence: str, ident: int) -> dict[str, Any]:
    """While torch is imported."""
    return {"id": ident, "waiting": sentence}


def _text(step: expressions.Step) -> str:
    return expressions.source(step) if step.value is None else words.FORM["leaf"]


def _tensor(step: expressions.Step, found: Outcome) -> dict[str, Any]:
    name = step.name
    return {
        "name": name,
        "text": _text(step),
        "leaf": step.value is not None,
        "hooked": name == found.plan.where,
        "value": numbers(found.values[name]),
        "without": numbers(found.without.tensors[name]),
        "hooked_gradient": numbers(found.hooked.tensors[name]),
        "again": None if found.again is None else numbers(found.again.tensors[name]),
    }


def _keys(plan: Plan) -> list[tuple[str, str, int]]:
    return [
        (given, step.name, place)
        for step in plan.steps
        for place, given in enumerate(step.inputs)
        if isinstance(given, str)
    ]


def _edge(key: tuple[str, str, int], found: Outcome) -> dict[str, Any]:
    def of(found: Pass) -> Any:
        return numbers(found.edges.get(key))

    return {
        "from": key[0],
        "to": key[1],
        "value": numbers(found.values[key[0]]),
        "without": of(found.without),
        "with": of(found.hooked),
    }


def _seed(plan: Plan) -> list[list[float | str]]:
    return _rows(_ones(plan.result.shape) if plan.seed is None else plan.seed)


def _ones(shape: tuple[int, ...]) -> Any:
    return tuple(_ones(shape[1:]) for _ in range(shape[0])) if shape else 1.0


def numbers(tensor: Tensor | None) -> list[list[float | str]] | None:
    """A tensor of up to two dimensions as rows of numbers; None where there is no gradient."""
    return None if tensor is None else _rows(tensor.tolist())


def _rows(value: Any) -> list[list[float | str]]:
    rows = value if isinstance(value, (list, tuple)) else [value]
    rows = rows if rows and isinstance(rows[0], (list, tuple)) else [rows]
    return [[_finite(each) for each in row] for row in rows]


def _finite(value: float) -> float | str:
    """JSON has no word for infinity; the scripts' `Number` reads these."""
    return value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")
