"""The wire format of the faithfulness check."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

from saliscope.page.components import view
from saliscope.session.answers import Answer
from saliscope.session.methods import badges
from saliscope.session.trust import engine, messages
from saliscope.session.trust.answers import CheckProgress, Verdict, Weights

if TYPE_CHECKING:
    from torch import Tensor

    import explainers
    from explainers.metrics.evaluation import Evaluation
    from explainers.metrics.randomization_result import Randomization

MARKS: dict[bool | None, str] = {True: "good", False: "bad", None: "unknown"}


def identify(step: Answer, ident: int) -> dict[str, Any]:
    """Pack the key of the map to check and whether the check runs automatically, or why it is not possible."""
    why = engine.why_not(step)
    quick = not why and engine.is_quick(step.settings)
    return {"id": ident, "key": step.settings.key, "map": step.settings.method.title, "why": why, "quick": quick}


def progress(step: CheckProgress) -> dict[str, Any]:
    """Pack the progress."""
    return {"key": step.key, "fraction": round(step.fraction, 3)}


def failed(key: str, message: str) -> dict[str, Any]:
    """Pack an error."""
    return {"key": key, "failed": message}


def verdict(step: Verdict) -> dict[str, Any]:
    """Pack the results with their marks, the curves, and the data to show the image at each step."""
    height, width = step.order.shape
    order = {"h": height, "w": width, "b64": base64.b64encode(step.order.numpy().tobytes()).decode("ascii")}
    rows = {
        "controls": _controls(step.evaluation),
        "class": _class(step),
        "weights": _weights(step.weights, step.method),
    }
    return {
        "key": step.key,
        "more": step.more,
        "verdict": {
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


def _controls(evaluation: Evaluation) -> dict[str, str]:
    """Pack the comparison with the controls.

    Good: not worse than any control, and better than random maps by one metric. Bad: worse than a control, and not
    better than any. On one image, "not significantly different" does not count against the map.
    """
    verdicts = [
        comparison.verdict for by_control in evaluation.comparisons.values() for comparison in by_control.values()
    ]
    random = [evaluation.compare(metric, "random").verdict for metric in evaluation.values]
    good, bad = "better" in random and "worse" not in verdicts, "worse" in verdicts and "better" not in verdicts
    return {"text": messages.controls(evaluation), "mark": "good" if good else "bad" if bad else "mixed"}


def _class(step: Verdict) -> dict[str, str]:
    from explainers.explanation.diagnosis import ALIKE  # torch takes seconds to start

    reads, similarity = step.method.reads_class, step.similarity
    correlation = math.nan if similarity is None else similarity.correlation
    if not reads or correlation > ALIKE:
        mark = "bad"
    elif math.isnan(correlation):
        mark = "unknown"
    else:
        mark = "mixed" if correlation > messages.PARTLY else "good"
    return {"text": messages.of_class(reads, similarity, ALIKE, step.uncompared), "mark": mark}


def _weights(test: Randomization | str | None, method: explainers.Method) -> dict[str, Any]:
    """Pack the test for this image (`here` is true), or the result for the method in the stored table."""
    if test is None and not method.reads_class:
        row = _of_table(method, "cascade", messages.ALL)
    elif test is None:
        row = _of_table(method, "logit", messages.LAST)
    else:
        passes = None if isinstance(test, str) else _passes(test)
        row = {"text": messages.of_weights(test, passes), "mark": MARKS[passes]}
    return {**row, "here": test is not None}


def _of_table(method: explainers.Method, order: str, part: str) -> dict[str, str]:
    from explainers.metrics.randomization_result import ALL_LAYERS, LAST_LAYER  # torch takes seconds to start

    table = badges.table()
    correlation = table.get("methods", {}).get(method.name, {}).get(order)
    if correlation is None:
        return {"text": "", "mark": "unknown"}
    passes = abs(correlation) < (LAST_LAYER if order == "logit" else ALL_LAYERS)
    text = messages.of_table(passes, correlation, part, table["network"], table["photographs"])
    return {"text": text, "mark": MARKS[passes]}


def _passes(test: Randomization) -> bool | None:
    """Return the verdict of the library; for a cascade (class-agnostic methods), only its last step counts."""
    from explainers.metrics.randomization_result import ALL_LAYERS  # torch takes seconds to start

    if test.order != "cascade":
        return test.passes
    correlation = test.after_all_layers
    return None if math.isnan(correlation) else abs(correlation) < ALL_LAYERS


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
