"""Deletion and insertion of every method, image by image, compared with the controls of the same image.

Results are in a JSON file outside the repository, so that a run resumes where another stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import explainers
from explainers import Method
from explainers.metrics.metric import EvaluationSettings
from explainers.metrics.run import Evaluator, evaluator
from saliscope.zoo import Model

METRICS = ("deletion", "insertion")
STEPS = 12
CONTROLS = {"random_control": "random", "edge_control": "edge", "center_control": "center"}
"""Methods that are controls: all other methods are compared with their results."""


@dataclass(frozen=True, eq=False)
class Photo:
    """One image: its name, the network's input [1, C, H, W] and the predicted class."""

    name: str
    image: Tensor
    target: int


def paths(folder: Path, limit: int | None = None) -> list[Path]:
    """Return the images of a folder and its subfolders, sorted by path; with a limit, evenly spaced ones."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if limit and limit < len(found):
        found = [found[index * len(found) // limit] for index in range(limit)]
    return found


def photographs(model: Model, files: Iterable[Path]) -> Iterator[Photo]:
    """Yield the images, each read when it is needed."""
    for path in files:
        with Image.open(path) as file:
            image = prepare(model, file.convert("RGB"))
        with torch.no_grad():
            target = int(model.network(image).argmax())
        yield Photo(path.stem, image, target)


def prepare(model: Model, image: Image.Image) -> Tensor:
    """Return the image as input; an image smaller than the input is enlarged to it and not cropped."""
    if min(image.size) >= model.side:
        return model.prepare(image)
    return replace(model.preparation, resize=model.side).tensor(image)


class Cache:
    """`results[method][photo]`, `controls[photo]`, `randomization[method][photo]` and `reasons[method]`.

    All results are of one network and one number of steps; a file with other settings raises an error.
    """

    PARTS = ("results", "controls", "reasons", "randomization")

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if known and known["settings"] != settings:
            raise SystemExit(f"{path} has results for {known['settings']}, not for {settings}. Use another --cache.")
        self.path, self.settings = path, settings
        self.results, self.controls, self.reasons, self.randomization = (known.get(part, {}) for part in self.PARTS)

    def save(self) -> None:
        """Write the file atomically."""
        parts = {name: getattr(self, name) for name in ("settings", *self.PARTS)}
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(parts), encoding="utf-8")
        os.replace(temporary, self.path)


def measure(model: Model, photo: Photo, methods: Sequence[Method], cache: Cache, precision: str) -> None:
    """Add the missing results of one image: the areas of every method and of the controls."""
    known = {name for name, rows in cache.results.items() if photo.name in rows} | set(cache.reasons)
    missing = [method for method in methods if method.name not in known]
    if missing:
        settings = EvaluationSettings(target=photo.target, metrics=METRICS, steps=STEPS, precision=precision)
        with evaluator(model.network, photo.image, settings) as judge:
            for method in missing:
                if (row := areas(model, photo, method, judge, cache)) is not None:
                    cache.results.setdefault(method.name, {})[photo.name] = row


def areas(model: Model, photo: Photo, method: Method, judge: Evaluator, cache: Cache) -> dict[str, Any] | None:
    """Return the areas of one method, or None if it has none; the cache then stores the reason."""
    reason = method.applies(model.network) or ""
    # These run on every network, but differ from LRP only in their rules for attention.
    if method.name in ("attn_lrp", "cp_lrp") and explainers.METHODS["attention_rollout"].applies(model.network):
        reason = f"made for attention between tokens, which {type(model.network).__name__} does not have"
    if method.returns == "channels":
        reason = "one value per channel, not a map"
    start = time.perf_counter()
    try:
        if reason:
            raise explainers.BadOption(reason)
        explanation = explainers.explain(method.name, model.network, photo.image, photo.target, compare=False)
        seconds = time.perf_counter() - start
        found = judge(explanation)
    except explainers.ExplainerError as error:
        cache.reasons[method.name] = str(error).partition(". ")[0]
        return None
    shown = CONTROLS.values()
    rows: dict[str, Any] = {control: {name: found.controls[name][control] for name in METRICS} for control in shown}
    rows["spread"] = {name: found.spread[name] for name in METRICS}
    rounded = {row: {name: round(float(value[0]), 6) for name, value in each.items()} for row, each in rows.items()}
    cache.controls.setdefault(photo.name, rounded)
    return {name: round(float(found.values[name][0]), 6) for name in METRICS} | {"seconds": round(seconds, 4)}


def randomize(model: Model, photo: Photo, methods: Sequence[Method], cache: Cache) -> None:
    """Add the missing rank correlations of one image: after the last layer, and after all layers, are randomized."""
    for method in methods:
        known = cache.randomization.setdefault(method.name, {})
        if photo.name in known or method.name in cache.reasons:
            continue
        try:
            found = explainers.randomization_test(model.network, photo.image, method.name, target=photo.target, seeds=1)
        except explainers.ExplainerError as error:
            known[photo.name] = {"reason": str(error).partition(". ")[0]}
            continue
        ends = {"logit": found.after_last_layer, "cascade": found.after_all_layers}
        known[photo.name] = {name: None if math.isnan(value) else round(value, 4) for name, value in ends.items()}
        cache.save()
