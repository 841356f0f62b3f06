"""Deletion and insertion of every method, photograph by photograph, beside the controls of the same photograph."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import explainers
from benchmarks.faithfulness.cache import Cache
from benchmarks.faithfulness.photos import Photo
from explainers import Evaluation, Method
from explainers.metrics.run import Evaluator, evaluator
from models import Model

METRICS = ("deletion", "insertion")
STEPS = 12
CONTROLS = {"random_control": "random", "edge_control": "edge", "centre_control": "centre"}
"""Methods that are the controls themselves: their figures are those that stand beside every other."""


def measure(
    model: Model, photo: Photo, methods: Sequence[Method], cache: Cache, budget: float | None, precision: str
) -> None:
    """Add what is missing of one photograph: every method's areas, and the controls'."""
    missing = [
        method
        for method in methods
        if photo.name not in cache.results.get(method.name, {}) and method.name not in cache.reasons
    ]
    if not missing:
        return
    settings: dict[str, Any] = {"metrics": METRICS, "steps": STEPS, "precision": precision}
    with evaluator(model.network, photo.image, target=photo.target, **settings) as judge:
        for method in missing:
            if (row := figures(model, photo, method, judge, cache, budget)) is not None:
                cache.results.setdefault(method.name, {})[photo.name] = row


def figures(
    model: Model,
    photo: Photo,
    method: Method,
    judge: Evaluator,
    cache: Cache,
    budget: float | None,
) -> dict[str, Any] | None:
    """The areas of one method; None where it has none, for a reason that the cache then holds."""
    reason = method.applies(model.network) or ""
    if method.returns == "channels":
        reason = "one value per channel, not a map"
    options: dict[str, Any] = {"budget": budget} if method.long and budget else {}
    try:
        if reason:
            raise explainers.BadOption(reason)
        began = time.perf_counter()
        explanation = explainers.explain(
            method.name, model.network, photo.image, photo.target, compare=False, **options
        )
        seconds = time.perf_counter() - began
        found = judge(explanation)
    except explainers.ExplainerError as refusal:
        cache.reasons[method.name] = str(refusal).partition(". ")[0]
        return None
    cache.controls.setdefault(photo.name, controls(found))
    return {name: round(float(found.values[name][0]), 6) for name in METRICS} | {"seconds": round(seconds, 4)}


def controls(found: Evaluation) -> dict[str, Any]:
    """The areas of the controls, and the spread of the random ones."""
    beside = {
        control: {name: round(float(found.controls[name][control][0]), 6) for name in METRICS}
        for control in found.controls["deletion"]
    }
    return beside | {"spread": {name: round(float(found.spread[name][0]), 6) for name in METRICS}}


def randomise(model: Model, photo: Photo, methods: Sequence[Method], cache: Cache, seeds: int) -> None:
    """Add what is missing of one photograph: rank correlations after the last layer was drawn anew, and after all."""
    for method in methods:
        known = cache.randomisation.setdefault(method.name, {})
        if photo.name in known or method.name in cache.reasons:
            continue
        try:
            found = explainers.randomisation_test(
                model.network, photo.image, method.name, target=photo.target, seeds=seeds
            )
        except explainers.ExplainerError as refusal:
            known[photo.name] = {"reason": str(refusal).partition(". ")[0]}
            continue
        ends = {"logit": found.after_last_layer, "cascade": found.after_all_layers}
        known[photo.name] = {name: None if math.isnan(value) else round(value, 4) for name, value in ends.items()}
        cache.save()
