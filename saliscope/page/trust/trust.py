"""The checks of a map, which run after it is shown: "focus" starts the check, and "submit" the randomization test.

The functions below the handlers pack the results for trust.js.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

import explainers
from explainers import Evaluation, Facts, Randomization, Verdict
from saliscope.compute.answers import Answer
from saliscope.compute.engine import plain
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.methods import badges
from saliscope.compute.request import Request
from saliscope.compute.trust import engine, messages
from saliscope.compute.trust.answers import CheckedMap, CheckProgress, Weights
from saliscope.page.components import view
from saliscope.page.events import Ask, on, run_job, stop_on
from saliscope.page.trust import parts
from saliscope.page.wire import Updates, base64_text

JOB = "trust"
"""Name of these jobs among the jobs of a visitor."""
MARKS: dict[bool | None, str] = {True: "good", False: "bad", None: "unknown"}


def interrupt(session: str) -> Updates:
    """Stop the check or the test of a visitor who asks a new question, because both would take twice as long.

    Returns  what to show if the new question fails
    """
    run = runs.supersede(f"{session}/{JOB}")
    return {parts.TRUST: failed(run.question, messages.STOPPED)} if run else {}


@on(parts.TRUST, "focus")
def check(ask: Ask) -> Iterator[Updates]:
    """Check the current map."""
    yield from _job(engine.check, ask)


@on(parts.TRUST, "submit")
def randomize(ask: Ask) -> Iterator[Updates]:
    """Run the randomization test."""
    yield from _job(engine.randomize_weights, ask)


stop_on(parts.TRUST, JOB)


def _job(work: Callable[[Request, Run, str], Iterator[Any]], ask: Ask) -> Iterator[Updates]:
    key = ask.text("key")

    def steps(run: Run) -> Iterator[Updates]:
        step = None
        for step in work(ask.question(), run, key):
            if isinstance(step, CheckProgress):
                yield {parts.TRUST: {"key": step.key, "fraction": round(step.fraction, 3)}}
            elif isinstance(step, CheckedMap):
                yield {parts.TRUST: verdict(step)}
            elif isinstance(step, Weights):
                yield {parts.TRUST: {"key": step.key, "weights": _weights(step.test, step.method)}}
        if not isinstance(step, (CheckedMap, Weights)):
            yield show_error(messages.CHANGED)

    def show_error(message: str) -> Updates:
        return {parts.TRUST: failed(key, message)}

    yield from run_job(ask.job(JOB), steps, show_error, question=key, unknown=messages.UNKNOWN)


def identify(step: Answer, ident: int) -> dict[str, Any]:
    """Pack the key of the map to check and its verdict so far, and whether the check runs automatically, or why not."""
    why, known = engine.why_not(step), engine.find(step.settings.key)
    verdict = known.verdict if known else step.verdict
    quick = not why and verdict.follows_tests and engine.is_quick(step.settings)
    return {"id": ident, "key": step.settings.key, "why": why, "quick": quick, **pack_verdict(verdict)}


def pack_verdict(verdict: Verdict) -> dict[str, str]:
    """Pack the sentence and its mark."""
    return {"sentence": verdict.sentence, "mark": verdict.mark}


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
        "own": plain(evaluation.curves[metric][0].tolist(), 4),
        "area": plain(float(evaluation.values[metric][0]), 3),
        "controls": {name: plain(curve[0].tolist(), 4) for name, curve in controls.items()},
        "band": [plain(edge.tolist(), 4) for edge in _band(evaluation, metric)],
        "areas": plain({name: float(value[0]) for name, value in evaluation.controls[metric].items()}, 3),
    }


def _band(evaluation: Evaluation, metric: str) -> tuple[Tensor, ...]:
    """Return the lowest and the highest value of the random maps at each step; nothing if they were not measured."""
    curves = evaluation.random_curves.get(metric)
    return () if curves is None else (curves[0].amin(0), curves[0].amax(0))
