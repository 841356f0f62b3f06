"""Metrics of a run's maps beside the controls, over a sample of its pictures."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import explainers
from dataset.errors import Refused
from dataset.past.again import Past
from dataset.rows import map_of
from dataset.shards import room_on_disk
from explainers.metrics.evaluation import Evaluation, mean_and_error
from explainers.metrics.metric import find_metric

FILE = "evaluation.json"
BATCH = 4
"""Pictures at once: each stands for two hundred variants."""
GROUPS = {"better": "better_than", "level": "level_with", "worse": "worse_than"}


def evaluate(
    past: Past,
    *,
    pictures: int = 100,
    metrics: Sequence[str] = ("deletion", "insertion"),
    steps: int = 20,
    precision: str = "auto",
    seed: int = 0,
    report: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Measure a random sample of the maps, and keep the result as evaluation.json in the run's folder.

    Returns  what the file holds: for each metric its mean and standard error over the sample, those of the controls,
             and which controls it is better than by the paired t-test
    Errors   Refused where no picture is there any more, or the network is another; BadOption for a metric that cannot
             be measured of stored maps
    """
    names = list(dict.fromkeys(metrics))
    for name in names:
        metric = find_metric(name)
        if metric.reruns or metric.region or not metric.controls:
            needs = "needs a region" if metric.region else "needs the sum that the method promised"
            needs = "runs the method again" if metric.reruns else needs
            raise Refused(f"{name} {needs}, which stored maps do not tell. Use explainers.evaluate, or another metric.")
    rows = _sample(past, pictures, seed)
    network = past.network.network
    found: list[Evaluation] = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        images = torch.cat([image for _, image in batch])
        maps = [torch.from_numpy(map_of(row)) for row, _ in batch]
        asked: dict[str, Any] = {"metrics": names, "steps": steps, "precision": precision, "seed": seed}
        target = [row["target_index"] for row, _ in batch]
        found.append(explainers.evaluate(network, images, torch.stack(maps), target=target, **asked))
        precision = found[-1].options["precision"]  # one for all, whatever the clock says later
        if report is not None:
            report(start + len(batch), len(rows))
    whole = _joined(found)
    result = {"pictures": len(rows), "steps": steps, "seed": seed, "precision": precision}
    result["metrics"] = {name: _of(whole, name) for name in names}
    with room_on_disk(past.finished.folder):
        Path(past.finished.folder, FILE).write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def _sample(past: Past, count: int, seed: int) -> list[tuple[dict[str, Any], torch.Tensor]]:
    """Rows and network inputs of pictures that are still there, and whose maps are finite.

    Errors   Refused where there is none
    """
    table = past.finished.table
    rows = [k for k, error in enumerate(table["error"].to_pylist()) if error is None]
    if not rows:
        none = "could be read" if len(table) else "was kept"
        raise Refused(f"No picture of {str(past.finished.folder)!r} {none}, so there is nothing to measure.")
    random.Random(seed).shuffle(rows)
    found: list[tuple[dict[str, Any], torch.Tensor]] = []
    prepare, broken = past.network.prepare, 0
    for place in rows:
        if len(found) == count:
            break
        row = table.slice(place, 1).to_pylist()[0]
        if not np.isfinite(map_of(row)).all():
            broken += 1
        elif (photo := past.photograph(row["path"])) is not None:
            found.append((row, prepare(photo)))
    if not found and broken:
        raise Refused(f"The maps of {str(past.finished.folder)!r} are not finite: {broken} of {len(rows)} rows.")
    if not found:
        raise Refused(f"None of the run's pictures is in {past.source!r} any more. Put them back there.")
    return found


def _joined(parts: Sequence[Evaluation]) -> Evaluation:
    """One evaluation of all pictures."""

    def cat(of: str) -> Any:
        each = [getattr(part, of) for part in parts]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}

    def nested(of: str) -> Any:
        each = [getattr(part, of) for part in parts]
        return {
            name: {control: torch.cat([one[name][control] for one in each]) for control in each[0][name]}
            for name in each[0]
        }

    return replace(
        parts[0],
        values=cat("values"),
        controls=nested("controls"),
        spread=cat("spread"),
        curves=cat("curves"),
        control_curves=nested("control_curves"),
        reasons={name: [reason for part in parts for reason in part.reasons[name]] for name in parts[0].reasons},
        maps=torch.cat([part.maps for part in parts]),
        target=[label for part in parts if isinstance(part.target, list) for label in part.target],
        seconds=sum(part.seconds for part in parts),
    )


def _of(evaluation: Evaluation, metric: str) -> dict[str, Any]:
    known = find_metric(metric)
    mean, error = mean_and_error(_finite(evaluation.values[metric]))
    places = evaluation.places.get(metric, {})
    groups = {name: [c for c, place in places.items() if place.verdict == verdict] for verdict, name in GROUPS.items()}
    beside = {c: mean_and_error(_finite(value)) for c, value in evaluation.controls.get(metric, {}).items()}
    return {
        "title": known.title,
        "higher": known.higher,
        "mean": _number(mean),
        "error": _number(error),
        **groups,
        "controls": {c: {"mean": _number(m), "error": _number(e)} for c, (m, e) in beside.items()},
        "p": {control: _number(place.p) for control, place in places.items()},
        "sentence": evaluation.sentence(metric) + ".",
    }


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values[values.isfinite()]


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
