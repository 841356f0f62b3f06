"""A finished run: its images, its network, and metrics of a sample of its maps, compared with control maps.

Single images are found again without listing the source.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import random
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image

import explainers
from explainers import Evaluation, find_metric
from saliscope.errors import Refused
from saliscope.runs.decoding import Decode
from saliscope.runs.explaining import embed, find_sentences
from saliscope.runs.items import Item, is_local, read
from saliscope.runs.results import EvaluationResult, Progress
from saliscope.runs.rows import Integers, RunData, map_of
from saliscope.runs.run import load
from saliscope.runs.settings import Settings
from saliscope.runs.sources import lists, tables, tars
from saliscope.runs.sources.location import Location, open_location, suffix
from saliscope.zoo import Model, ModelUnavailable, devices
from saliscope.zoo.model import Preparation
from saliscope.zoo.weights import weights_hash

ESCAPED = re.compile(r"\\udc([0-9a-f]{2})")
"""A byte of a file name that is not UTF-8, as `Location.to_text` writes it."""


class Finder:
    """The images of a source by the path of their rows.

    Errors   Refused, in `find` too, if the source cannot be read
    """

    def __init__(self, source: str) -> None:
        self._location = location = open_location(source)
        self._members = functools.lru_cache(maxsize=1)(self._read_tar)  # rows are in the order of the tars
        self._is_tar = location.is_file and tars.is_tar(location.start(location.name))

    def find(self, path: str) -> Item | None:
        """Return the image with this path; it may have been deleted."""
        location = self._location
        if self._is_tar:
            return self._members(location.name, "").get(path)
        name, mark, row = path.rpartition("#")
        if mark and row.isdecimal() and suffix(name) in tables.SUFFIXES:
            return Item(path, None, location.url(self._raw(name)), row=int(row))
        for end in re.finditer(r"\.tar/", path, re.IGNORECASE):
            tar = self._raw(path[: end.end() - 1])
            if location.fs.isfile(location.path(tar)):
                return self._members(tar, tar + "/").get(path)
        may_be_list = location.is_file or location.matches
        return Item(path, None, (lists.url_of if may_be_list else Location.url)(location, self._raw(path)))

    def _raw(self, name: str) -> str:
        """Return the file name that `to_text` has written as text."""
        if "\\udc" not in name or (self._location.local and os.path.lexists(self._location.path(name))):
            return name
        return ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), name)

    def _read_tar(self, name: str, prefix: str) -> dict[str, Item]:
        return {item.path: item for item in tars.members(self._location, name, prefix)}


class FinishedRun:
    """A finished run, with access to its images and its network."""

    def __init__(self, data: RunData, decode: Decode, model: Model | None = None) -> None:
        """Args     model: the network of the run, if it cannot be loaded by the name that the run has."""
        self.data, self._decode, self._given = data, decode, model
        self._hashes = functools.cache(self._read_hashes)

    @cached_property
    def settings(self) -> Settings:
        """The settings of the run."""
        stored = Settings.of(self.data.settings)
        own = _tuples(stored.own)
        own |= {name: self._resolve(own[name]) for name in ("weights", "labels") if isinstance(own.get(name), str)}
        file, colon, factory = stored.model.rpartition(":")
        model = f"{self._resolve(file)}{colon}{factory}" if file.endswith(".py") else stored.model
        return replace(stored, own=own, model=model)

    @cached_property
    def source(self) -> str:
        """The source of the images of the run."""
        return self._resolve(self.data.manifest.get("source", ""))

    def _resolve(self, path: str) -> str:
        """Return a path relative to the folder in which the run was started, if it exists there."""
        directory = self.data.manifest.get("directory")
        if not is_local(path) or os.path.isabs(os.path.expanduser(path)) or not directory:
            return path
        resolved = os.path.join(directory, path)
        return resolved if os.path.lexists(resolved) else path

    @cached_property
    def _finder(self) -> Finder | None:
        try:
            return Finder(self.source)
        except (Refused, OSError):
            return None

    def image(self, path: str, digest: str | None = None) -> Image.Image | None:
        """Return the image of a row, or None if it does not exist anymore or has changed; as `read`."""
        return self.decode(self.read(path, digest))

    def decode(self, data: bytes | None) -> Image.Image | None:
        """Return the image in the bytes of a file, or None if it cannot be decoded."""
        try:
            return None if data is None else self._decode(data)
        except (ValueError, OSError):
            return None

    def read(self, path: str, digest: str | None = None) -> bytes | None:
        """Return the encoded bytes of the image of a row, or None if it does not exist anymore or has changed.

        Args     digest: the SHA-256 in the row, if the caller has it; otherwise the row is searched
        """
        try:
            item = None if self._finder is None else self._finder.find(path)
            data = None if item is None else read(item)
        except (ValueError, OSError):
            return None
        if data is None:
            return None
        digest = self._find("path", path, "sha256") if digest is None else digest
        return data if digest == hashlib.sha256(data).hexdigest() else None

    def path_of(self, digest: str) -> str | None:
        """Return the path of the first image with this SHA-256, or None."""
        return self._find("sha256", digest, "path")

    def _find(self, column: str, value: str, wanted: str) -> Any:
        """Return another column of the first row with this value, or None."""
        for row in np.flatnonzero(self._hashes(column) == hash(value)).tolist():
            (found,) = self.data.take([row], [column, wanted]).to_pylist()
            if found[column] == value:
                return found[wanted]
        return None

    def _read_hashes(self, column: str) -> Integers:
        """Return the hash of each value of a column: eight bytes per row."""
        values = (value for _, table in self.data.batches([column]) for value in table[column].to_pylist())
        return np.fromiter(map(hash, values), np.int64, len(self.data))

    @cached_property
    def model(self) -> Model:
        """The network of the run.

        Errors   Refused if its weights have changed; zoo.ModelUnavailable
        """
        model = self._given or load(self.settings)
        if weights_hash(model) != self.data.manifest["weights_sha256"]:
            raise Refused(f"The weights of {model.name} are not those of this run. Run `saliscope explain` again.")
        return model

    @cached_property
    def preparation(self) -> Preparation | None:
        """The preprocessing of the run: as stored, or that of the network, or None if that is not available."""
        stored = self.data.manifest.get("preprocessing")
        if stored is None:
            model = self.try_model()
            return None if model is None else model.preparation
        return Preparation(**_tuples(stored))

    def try_model(self) -> Model | None:
        """Return the network of the run, or None if it is not available or has changed."""
        try:
            return self.model
        except (Refused, ModelUnavailable):
            return None

    def move(self, device: str) -> torch.device:
        """Move the network, if it is available, to a device, and return the device. Warn if its maps differ there.

        Errors   Refused if the device is not available
        """
        place, model = devices.choose(device), self.try_model()
        if model is not None:
            if warning := devices.compare(model, place):
                warnings.warn(warning, stacklevel=3)
            model.network.to(place)
        return place


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with tuples instead of lists, which JSON has."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


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
    progress: Progress | None = None,
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
    place = run.move(device)
    evaluations: list[Evaluation] = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        inputs = torch.cat([image for _, image in batch]).to(place)
        maps = [torch.from_numpy(map_of(row)) for row, _ in batch]
        options: dict[str, Any] = {"metrics": names, "steps": steps, "precision": precision, "seed": seed}
        target = [row["target_index"] for row, _ in batch] if similarity is None else similarity
        options["score"] = run.model.score_kind
        evaluations.append(explainers.evaluate(run.model.network, inputs, torch.stack(maps), target=target, **options))
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
    comparisons = evaluation.comparisons.get(metric, {})
    groups = {name: [c for c, each in comparisons.items() if each.verdict == kind] for kind, name in GROUPS.items()}
    return {
        "title": known.title,
        "unit": evaluation.unit(metric),
        "higher": known.higher,
        **_mean_and_error(evaluation, metric),
        **groups,
        "controls": {c: _mean_and_error(evaluation, metric, c) for c in evaluation.controls.get(metric, {})},
        "p": {control: _number(comparison.p) for control, comparison in comparisons.items()},
        "p_adjusted": {control: _number(comparison.p_adjusted) for control, comparison in comparisons.items()},
        "sentence": evaluation.sentence(metric) + ".",
    }


def _mean_and_error(evaluation: Evaluation, metric: str, control: str | None = None) -> dict[str, float | None]:
    return dict(zip(("mean", "error"), map(_number, evaluation.mean_and_error(metric, control)), strict=True))


def _number(value: float) -> float | None:
    """Return the value with six digits, or None for NaN and infinity, which JSON does not have."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
