"""Evaluate the maps of a run and the control maps with metrics, on a sample of its images."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import explainers
from explainers import Evaluation, find_metric
from saliscope.errors import Refused
from saliscope.runs.explaining import embed, find_sentences
from saliscope.runs.finished.finished_run import FinishedRun
from saliscope.runs.results import EvaluationResult
from saliscope.runs.rows import map_of
from saliscope.zoo import devices

FILE = "evaluation.json"
BATCH = 4
"""Images per batch; each one needs nearly three hundred perturbed copies."""
GROUPS = {"better": "better_than", "level": "level_with", "worse": "worse_than", "few": "too_few_for"}


def evaluate(
    run: FinishedRun,
    *,
    images: int = 100,
    metrics: str | Sequence[str] = ("deletion", "insertion"),
    steps: int = 20,
    precision: str = "auto",
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int, int], object] | None = None,
) -> EvaluationResult:
    """Evaluate a random sample of the maps, compared with control maps, and save the result as evaluation.json.

    The result has for each metric its mean and standard error over the sample, those of the controls, and which
    controls it is significantly better than (a sign-flip test, adjusted for the number of comparisons).

    Args     images: the size of the sample
             metrics: names of metrics that need no second map, see `explainers.METRICS`
             steps: points of a curve
             precision: "float32", "bf16" or "auto"
    Errors   Refused if no image is available, the device is not, or the network has changed; BadOption for an unknown
             metric

    Example
        >>> result = run.evaluate(images=2, steps=2, metrics="deletion")
        >>> result.images, list(result.metrics)
        (2, ['deletion'])
    """
    if images < 1:
        raise Refused(f"Invalid images={images}. Use at least 1.")
    names = [metrics] if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    for name in names:
        metric = find_metric(name)
        if metric.reruns or metric.region or not metric.controls:
            needs = "needs a region" if metric.region else "needs the sum that the method guarantees"
            needs = "runs the method again" if metric.reruns else needs
            raise Refused(
                f"{name} {needs}, so stored maps are not sufficient. Use explainers.evaluate or another metric."
            )
    rows = _sample(run, images, seed)
    sentences = find_sentences(run.settings, run.model)
    similarity = embed(run.model, sentences)[1] if sentences else None
    place = devices.choose(device)
    if warning := devices.compare(run.model, place):
        warnings.warn(warning, stacklevel=2)
    network = run.model.network.to(place)
    evaluations: list[Evaluation] = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        inputs = torch.cat([image for _, image in batch]).to(place)
        maps = [torch.from_numpy(map_of(row)) for row, _ in batch]
        options: dict[str, Any] = {"metrics": names, "steps": steps, "precision": precision, "seed": seed}
        target = [row["target_index"] for row, _ in batch] if similarity is None else similarity
        options["score"] = run.model.score_kind
        evaluations.append(explainers.evaluate(network, inputs, torch.stack(maps), target=target, **options))
        precision = evaluations[-1].options["precision"]  # the first batch determines it for all batches
        if progress is not None:
            progress(start + len(batch), len(rows))
    evaluation = _merge(evaluations)
    result: dict[str, Any] = {"images": len(rows), "steps": steps, "seed": seed, "precision": precision}
    result |= {"device": str(place), "verdict": evaluation.verdict.sentence}
    result["metrics"] = {name: _summarize(evaluation, name) for name in names}
    run.data.store.write(FILE, json.dumps(result, indent=1).encode())
    return EvaluationResult(f"{str(run.data.folder).rstrip('/')}/{FILE}", **result)


def _sample(finished_run: FinishedRun, count: int, seed: int) -> list[tuple[dict[str, Any], torch.Tensor]]:
    """Return rows and network inputs of images that are still available and whose maps are finite.

    Errors   Refused if there are none
    """
    data = finished_run.data
    rows = [k for k, error in enumerate(data.columns(["error"])["error"].to_pylist()) if error is None]
    if not rows:
        reason = "could be read" if len(data) else "was kept"
        raise Refused(f"No image of {str(data.folder)!r} {reason}, so there is nothing to evaluate.")
    random.Random(seed).shuffle(rows)
    sample: list[tuple[dict[str, Any], torch.Tensor]] = []
    prepare, broken = finished_run.model.prepare, 0
    for index in rows:
        if len(sample) == count:
            break
        row = data.take([index]).to_pylist()[0]
        if not np.isfinite(map_of(row)).all():
            broken += 1
        elif (image := finished_run.image(row["path"], row["sha256"])) is not None:
            sample.append((row, prepare(image)))
    if not sample and broken:
        raise Refused(f"The maps of {str(data.folder)!r} are not finite: {broken} of {len(rows)} rows.")
    if not sample:
        raise Refused(f"None of the images of the run is in {finished_run.source!r} anymore. Restore them there.")
    return sample


JOINED = "values controls spread curves control_curves reasons maps target random_values random_curves".split()
"""The fields of an `Evaluation` that have an entry per image."""


def _merge(parts: Sequence[Evaluation]) -> Evaluation:
    """Return one evaluation of all images."""
    joined = {name: _join([getattr(part, name) for part in parts]) for name in JOINED}
    return replace(parts[0], **joined, seconds=sum(part.seconds for part in parts))


def _join(parts: Sequence[Any]) -> Any:
    """Concatenate the tensors and lists of all batches, also those in dictionaries."""
    if isinstance(parts[0], dict):
        return {name: _join([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts))
    return [each for part in parts if isinstance(part, list) for each in part]


def _summarize(evaluation: Evaluation, metric: str) -> dict[str, Any]:
    known = find_metric(metric)
    mean, error = evaluation.mean_and_error(metric)
    comparisons = evaluation.comparisons.get(metric, {})
    verdicts = {control: comparison.verdict for control, comparison in comparisons.items()}
    groups = {name: [c for c, value in verdicts.items() if value == verdict] for verdict, name in GROUPS.items()}
    controls = {c: evaluation.mean_and_error(metric, c) for c in evaluation.controls.get(metric, {})}
    return {
        "title": known.title,
        "unit": evaluation.unit(metric),
        "higher": known.higher,
        "mean": _number(mean),
        "error": _number(error),
        **groups,
        "controls": {c: {"mean": _number(m), "error": _number(e)} for c, (m, e) in controls.items()},
        "p": {control: _number(comparison.p) for control, comparison in comparisons.items()},
        "p_adjusted": {control: _number(comparison.p_adjusted) for control, comparison in comparisons.items()},
        "sentence": evaluation.sentence(metric) + ".",
    }


def _number(value: float) -> float | None:
    """Return the value with six digits, or None for NaN and infinity, which JSON does not have."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
