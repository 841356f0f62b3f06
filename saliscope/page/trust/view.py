"""The wire format of the faithfulness check."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import explainers
from explainers import Evaluation, Facts, Randomization, Verdict
from saliscope.compute.answers import Answer
from saliscope.compute.methods import badges
from saliscope.compute.trust import engine, messages
from saliscope.compute.trust.answers import CheckedMap, CheckProgress, Weights
from saliscope.page.components import view
from saliscope.page.wire import base64_text

MARKS: dict[bool | None, str] = {True: "good", False: "bad", None: "unknown"}


def identify(step: Answer, ident: int) -> dict[str, Any]:
    """Pack the key of the map to check and its verdict so far, and whether the check runs automatically, or why not."""
    why, known = engine.why_not(step), engine.find(step.settings.key)
    verdict = known.verdict if known else step.verdict
    quick = not why and verdict.follows_tests and engine.is_quick(step.settings)
    return {"id": ident, "key": step.settings.key, "why": why, "quick": quick, **pack_verdict(verdict)}


def pack_verdict(verdict: Verdict) -> dict[str, str]:
    """Pack the sentence and its mark."""
    return {"sentence": verdict.sentence, "mark": verdict.mark}


def progress(step: CheckProgress) -> dict[str, Any]:
    """Pack the progress."""
    return {"key": step.key, "fraction": round(step.fraction, 3)}


def failed(key: str, message: str) -> dict[str, Any]:
    """Pack an error."""
    return {"key": key, "failed": message}


def verdict(step: CheckedMap) -> dict[str, Any]:
    """Pack the results with their marks, the curves, and the data to show the image at each step."""
    height, width = step.order.shape
    order = {"h": height, "w": width, "b64": base64_text(step.order.numpy().tobytes())}
    rows = {
        "controls": {"text": messages.controls(step.evaluation), "mark": step.evaluation.verdict.mark},
        "class": _class(step),
        "weights": _weights(step.weights, step.method),
    }
    return {
        "key": step.key,
        "more": step.more,
        "verdict": {
            **pack_verdict(step.verdict),
            "headline": step.headline,
            "rows": rows,
            "unit": step.unit,
            "name": step.name,
            "curves": {metric: _curves(step.evaluation, metric) for metric in engine.METRICS},
            "order": order,
            "blurred": view.jpeg(step.blurred),
        },
    }


def weights(step: Weights) -> dict[str, Any]:
    """Pack only the row of the randomization test."""
    return {"key": step.key, "weights": _weights(step.test, step.method)}


def _class(step: CheckedMap) -> dict[str, str]:
    reads, similarity = step.method.reads_class, step.similarity
    dependence = Facts(correlation=None if similarity is None else similarity.correlation).class_dependence
    mark = {"hardly": "bad", "partly": "mixed", "depends": "good", "": "unknown"}[dependence] if reads else "bad"
    return {"text": messages.of_class(reads, similarity, dependence, step.uncompared), "mark": mark}


def _weights(test: Randomization | str | None, method: explainers.Method) -> dict[str, Any]:
    """Pack the test for this image (`here` is true), or the result for the method in the stored table."""
    if test is None and not method.reads_class:
        row = _of_table(method, "cascade", messages.ALL)
    elif test is None:
        row = _of_table(method, "logit", messages.LAST)
    else:
        passes = None if isinstance(test, str) else test.depends_on_weights(method.reads_class)
        row = {"text": messages.of_weights(test, passes), "mark": MARKS[passes]}
    return {**row, "here": test is not None}


def _of_table(method: explainers.Method, order: str, part: str) -> dict[str, str]:
    table = badges.table()
    correlation = table.get("methods", {}).get(method.name, {}).get(order)
    if correlation is None:
        return {"text": "", "mark": "unknown"}
    passes = abs(correlation) < (Randomization.LAST_LAYER if order == "logit" else Randomization.ALL_LAYERS)
    text = messages.of_table(passes, correlation, part, table["network"], table["photographs"])
    return {"text": text, "mark": MARKS[passes]}


def _curves(evaluation: Evaluation, metric: str) -> dict[str, Any]:
    """Pack the curves and areas of the map and of each control."""
    controls = evaluation.control_curves[metric]
    return {
        "own": _rounded(evaluation.curves[metric][0]),
        "area": float(f"{float(evaluation.values[metric][0]):.3g}"),
        "controls": {name: _rounded(curve[0]) for name, curve in controls.items()},
        "band": [_rounded(edge) for edge in _band(evaluation, metric)],
        "areas": {name: float(f"{float(value[0]):.3g}") for name, value in evaluation.controls[metric].items()},
    }


def _band(evaluation: Evaluation, metric: str) -> tuple[Tensor, ...]:
    """Return the lowest and the highest value of the random maps at each step; nothing if they were not measured."""
    curves = evaluation.random_curves.get(metric)
    return () if curves is None else (curves[0].amin(0), curves[0].amax(0))


def _rounded(curve: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in curve.tolist()]
