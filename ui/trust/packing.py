"""What the scripts of the trust strip read."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

from ui.engine import packing
from ui.engine.messages import Answer
from ui.methods import badges
from ui.trust import engine, words
from ui.trust.messages import Judging, Verdict, Weights

if TYPE_CHECKING:
    from torch import Tensor

    import explainers
    from explainers.metrics.evaluation import Evaluation
    from explainers.metrics.randomisation_result import Randomisation

MARKS: dict[bool | None, str] = {True: "good", False: "bad", None: "unknown"}


def wanted(step: Answer, ident: int) -> dict[str, Any]:
    """After an answer: whose verdict may be asked for, whether at once, or why there is none."""
    why = engine.why_not(step)
    quick = not why and engine.is_quick(step.settings)
    return {"id": ident, "key": step.settings.key, "map": step.settings.method.title, "why": why, "quick": quick}


def judging(step: Judging) -> dict[str, Any]:
    """How far it is."""
    return {"key": step.key, "fraction": round(step.fraction, 3)}


def failed(key: str, sentence: str) -> dict[str, Any]:
    """A refusal."""
    return {"key": key, "failed": sentence}


def verdict(step: Verdict) -> dict[str, Any]:
    """Sentences with their marks, the curves, and what is needed to show the picture at each step."""
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
            "blurred": packing.picture(step.blurred),
        },
    }


def weights(step: Weights) -> dict[str, Any]:
    """The row of the weights alone."""
    return {"key": step.key, "weights": _weights(step.test, step.method)}


def _controls(evaluation: Evaluation) -> dict[str, str]:
    """Good: beside no control worse, and beside random maps better by one of the two; bad: better than none."""
    found = [place.verdict for each in evaluation.places.values() for place in each.values()]
    random = [evaluation.place(metric, "random").verdict for metric in evaluation.values]
    good, bad = "better" in random and "worse" not in found, "better" not in found
    return {"text": words.controls(evaluation), "mark": "good" if good else "bad" if bad else "mixed"}


def _class(step: Verdict) -> dict[str, str]:
    from explainers.explanation.diagnosis import ALIKE  # torch takes seconds to start

    reads, alike = step.method.reads_class, step.alike
    measured = alike is not None and alike.correlation == alike.correlation
    mark = "bad" if not reads or (alike and alike.correlation > ALIKE) else "good" if measured else "unknown"
    return {"text": words.of_class(reads, alike, ALIKE), "mark": mark}


def _weights(test: Randomisation | str | None, method: explainers.Method) -> dict[str, Any]:
    """Of this picture, as `here` says, else as the checked-in table has it of the method."""
    if test is None and not method.reads_class:
        found = _of_table(method, "cascade", words.ALL)
    elif test is None:
        found = _of_table(method, "logit", words.LAST)
    else:
        passes = None if isinstance(test, str) else _passes(test)
        found = {"text": words.of_weights(test, passes), "mark": MARKS[passes]}
    return {**found, "here": test is not None}


def _of_table(method: explainers.Method, order: str, drawn: str) -> dict[str, str]:
    from explainers.metrics.randomisation_result import ALL_LAYERS, LAST_LAYER  # torch takes seconds to start

    table = badges.table()
    correlation = table.get("methods", {}).get(method.name, {}).get(order)
    if correlation is None:
        return {"text": "", "mark": "unknown"}
    passes = abs(correlation) < (LAST_LAYER if order == "logit" else ALL_LAYERS)
    text = words.of_table(passes, correlation, drawn, table["network"], table["photographs"])
    return {"text": text, "mark": MARKS[passes]}


def _passes(test: Randomisation) -> bool | None:
    """The library's verdict; of a cascade, which methods without a class get, by its end alone."""
    from explainers.metrics.randomisation_result import ALL_LAYERS  # torch takes seconds to start

    if test.order != "cascade":
        return test.passes
    correlation = test.after_all_layers
    return None if math.isnan(correlation) else abs(correlation) < ALL_LAYERS


def _curves(evaluation: Evaluation, metric: str) -> dict[str, Any]:
    """The curves and areas of the map and of each control."""
    beside = evaluation.control_curves[metric]
    return {
        "own": _rounded(evaluation.curves[metric][0]),
        "area": float(f"{float(evaluation.values[metric][0]):.3g}"),
        "controls": {name: _rounded(curve[0]) for name, curve in beside.items()},
        "areas": {name: float(f"{float(value[0]):.3g}") for name, value in evaluation.controls[metric].items()},
    }


def _rounded(curve: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in curve.tolist()]
