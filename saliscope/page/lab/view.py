"""The wire format of the gradient lab."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from saliscope.compute.lab import experiments, expressions, messages, not_finite
from saliscope.compute.lab.engine import Outcome
from saliscope.compute.lab.experiments import Plan
from saliscope.compute.lab.image import Depth
from saliscope.compute.lab.training import Curves
from saliscope.compute.messages import status
from saliscope.page.wire import base64_text


def outcome(result: Outcome) -> dict[str, Any]:
    """Pack an experiment: all tensors and edges with their gradients, and the code."""
    plan = result.plan
    return {
        "line": " ".join([*plan.notes, messages.ran(plan.hook, plan.where, plan.result.name)]),
        "finding": not_finite.diagnosis(result),
        "where": plan.where,
        "names": [{"name": step.name, "text": _text(step)} for step in plan.steps],
        "again": result.again is not None,
        "tensors": [_tensor(step, result) for step in plan.steps],
        "edges": [_edge(key, result) for key in _keys(plan)],
        "result": {"name": plan.result.name, "seed": _seed(plan)},
        "code": experiments.code(plan),
    }


def refusal(message: str, field: str = "") -> dict[str, Any]:
    """Pack an error and the form field that caused it; the script keeps the previous result."""
    return {"error": message, "field": field}


def _text(step: expressions.Step) -> str:
    return expressions.source(step) if step.value is None else str(messages.FORM["leaf"])


def _tensor(step: expressions.Step, result: Outcome) -> dict[str, Any]:
    name = step.name
    return {
        "name": name,
        "text": _text(step),
        "leaf": step.value is not None,
        "hooked": name == result.plan.where,
        "value": numbers(result.values[name]),
        "without": numbers(result.without.tensors[name]),
        "hooked_gradient": numbers(result.hooked.tensors[name]),
        "again": None if result.again is None else numbers(result.again.tensors[name]),
    }


def _keys(plan: Plan) -> list[tuple[str, str, int]]:
    return [
        (operand, step.name, index)
        for step in plan.steps
        for index, operand in enumerate(step.inputs)
        if isinstance(operand, str)
    ]


def _edge(key: tuple[str, str, int], result: Outcome) -> dict[str, Any]:
    return {
        "from": key[0],
        "to": key[1],
        "value": numbers(result.values[key[0]]),
        "without": numbers(result.without.edges.get(key)),
        "with": numbers(result.hooked.edges.get(key)),
    }


def _seed(plan: Plan) -> list[list[float | str]]:
    return _rows(experiments.fill(plan.result.shape, 1.0) if plan.seed is None else plan.seed)


def numbers(tensor: Tensor | None) -> list[list[float | str]] | None:
    """Return a tensor of up to two dimensions as rows of numbers, or None if there is no gradient."""
    return None if tensor is None else _rows(tensor.tolist())


def _rows(value: Any) -> list[list[float | str]]:
    rows = value if isinstance(value, (list, tuple)) else [value]
    rows = rows if rows and isinstance(rows[0], (list, tuple)) else [rows]
    return [[_finite(entry) for entry in row] for row in rows]


def _finite(value: float) -> float | str:
    """Return NaN and infinity, which JSON does not support, as strings that JavaScript's `Number` parses."""
    return value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")


# Training


def curves(run: Curves) -> dict[str, Any]:
    """Pack the state of a run: curves by recorded step, histograms with 256 levels, and findings."""
    training = run.training
    loss = run.loss[-1] if run.loss else math.nan
    state = "running" if not run.end else "broken" if run.end == "broken" else "done"
    return {
        "state": state,
        "line": messages.training_line(run.step, training.steps, run.seconds, loss, run.end),
        "fraction": run.step / training.steps,
        "steps": training.steps,
        "layers": list(training.layers),
        "at": run.at,
        "loss": _rounded(run.loss),
        "norms": {layer: _rounded(values) for layer, values in run.norms.items()},
        "updates": {layer: _rounded(values) for layer, values in run.updates.items()},
        "heat": {layer: _sheet(columns) for layer, columns in run.histograms.items()},
        "findings": [finding.sentence for finding in run.findings],
    }


def _sheet(columns: list[tuple[tuple[int, ...], float, float]]) -> dict[str, Any]:
    """Pack histograms, one column per step, each scaled to its largest count."""
    shades = bytearray()
    for counts, _, _ in columns:
        most = max(counts) or 1
        shades += bytes(round(255 * math.sqrt(count / most)) for count in counts)
    bins = len(columns[0][0]) if columns else 1
    ends = [[end if math.isfinite(end) else 0.0 for end in (low, high)] for _, low, high in columns]
    return {
        "counts": base64_text(bytes(shades)),
        "bins": bins,
        "low": [low for low, _ in ends],
        "high": [high for _, high in ends],
    }


def _rounded(values: list[float]) -> list[float | None]:
    """Round to five significant digits; NaN and infinity become None."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


# Image


def depth(measured: Depth) -> dict[str, Any]:
    """Pack the gradient norms of the network: one bar per layer, in call order."""
    settings, layers = measured.settings, measured.layers
    return status("done", messages.depth_line(measured.name, settings.loaded.title, len(layers))) | {
        "verdict": messages.depth_verdict(measured.vanished, _extremes(measured)),
        "vanished": bool(measured.vanished),
        "least": measured.least,
        "names": [layer.name for layer in layers],
        "norms": _rounded(measured.norms),
        "stages": [layer.name if layer.stage else "" for layer in layers],
        "read": [messages.depth_read(*bar) for bar in zip(layers, measured.norms, measured.zeros, strict=True)],
    }


def _extremes(measured: Depth) -> tuple[str, float, str, float]:
    """Return the layers with the largest and the smallest norm."""
    known = [
        (norm, layer.name) for layer, norm in zip(measured.layers, measured.norms, strict=True) if math.isfinite(norm)
    ]
    (high, largest), (low, smallest) = max(known, default=(0.0, "")), min(known, default=(0.0, ""))
    return largest, high, smallest, low
