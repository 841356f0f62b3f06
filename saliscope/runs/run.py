"""A run: it is prepared, and engines send their results, in any order, to the process with the lock.

On one machine, images are decoded in worker processes and explained in batches, shard by shard.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import os
import platform
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from saliscope import zoo
from saliscope.errors import Refused
from saliscope.runs.decoding import Decode, DecodedBatch, decode_batches
from saliscope.runs.explaining import Explainer, find_sentences
from saliscope.runs.formats import shorten
from saliscope.runs.items import WHOLE, Item
from saliscope.runs.settings import LABEL, WRONG, Classes, Settings
from saliscope.runs.shards import Shards, read_manifest
from saliscope.runs.shards.planning import PARTITION, Batch, PlannedShard, Stamp, digest_of, list_partition, plan
from saliscope.runs.sources import Listing, Partition, list_items
from saliscope.zoo import Model, devices
from saliscope.zoo.weights import weights_hash

Report = Callable[[int, int | None], object]
"""Called with the number of finished images and the total number, None for a source that is listed during the run."""
Detail = Callable[[int, int, int | None], object]
"""Called with the number of errors in a batch, its shard from 1, and the number of shards, None if it is not known."""
PACKAGES = ("saliscope", "torchvision", "pillow", "pyarrow")
FEW = 64
"""Up to this number of images, no worker processes are started, because starting them takes seconds."""


def prepare(
    settings: Settings,
    source: str,
    out: str | Path,
    *,
    limit: int | None = None,
    device: str = "cpu",
    model: Model | None = None,
) -> Job:
    """Prepare a run, and report all errors in the settings and the source before any work starts.

    Errors   Refused; zoo.ModelUnavailable
    """
    settings.check()
    listing = list_items(source, None if settings.only_label else limit)
    place = devices.choose(device)
    model = model or load(settings)
    find_sentences(settings, model)  # before it looks for labels of classes
    if warning := devices.compare(model, place):
        warnings.warn(warning, stacklevel=2)
    if settings.only_label:
        listing = _select_label(listing, settings.only_label, model).first(limit)
    if settings.target == LABEL or settings.where == WRONG:
        _check_labels(settings, listing, model)
    return create_job(settings, listing, source, out, model, device)


def create_job(
    settings: Settings, listing: Listing, source: str, out: str | Path, model: Model, device: str = "cpu"
) -> Job:
    """Return a job for images that are already listed.

    Errors   Refused; those of `explainers`
    """
    explainer = Explainer(model, settings, device)
    explainer.check()
    interface = repr((model.labels, model.preparation))  # a file of labels may have changed
    record = {
        **asdict(settings),
        "model": model.name if settings.model == "auto" else settings.model,  # the user's own is found by its name
        "layer": explainer.options.get("layer"),
        "images": _describe(listing),
        "labels_and_preprocessing": hashlib.sha256(interface.encode("utf-8", "backslashreplace")).hexdigest()[:16],
        # Sums with another number of threads differ in their last bits.
        "threads": torch.get_num_threads() if explainer.device == "cpu" else None,
        "weights_sha256": weights_hash(model),
    }
    return Job(settings, model, listing, source, Shards(out, record))


def _describe(listing: Listing) -> str:
    """Return what the settings of a run say about its images; those of a large source are compared shard by shard."""
    if listing.known is None:
        files = len(listing.partitions)
        return "listed during the run" if files == 1 else f"{files} files, listed during the run"
    count = "1 image" if len(listing.known) == 1 else f"{len(listing.known)} images"
    return f"{count} ({Stamp.of(listing.known).digest})"


def load(settings: Settings) -> Model:
    """Load the network of a run.

    Errors   zoo.ModelUnavailable
    """
    model = zoo.load_model(settings.model, **settings.own)
    if model.task != "classification":
        raise Refused(f"{model.name} is a {model.task} model. Choose a classifier.")
    if model.channels not in (1, 3):
        raise Refused(f"{model.name} needs {model.channels} channels, but images have 3. Choose another model.")
    return model


def _has_label(name: str, classes: Classes, item: Item) -> bool:
    wanted = classes.find(name)
    return item.label == name or (wanted is not None and classes.find(item.label) == wanted)


def _select_label(listing: Listing, name: str, model: Model) -> Listing:
    selected = listing.select(partial(_has_label, name, Classes(model.labels)))  # is sent to other machines
    if next(iter(selected), None) is None:
        labels = sorted(_first_labels(listing))
        known = f"The labels are {shorten(labels, 8)}." if labels else "The source has no labels."
        raise Refused(f"No image has the label {name!r}. {known}")
    return selected


def _first_labels(listing: Listing) -> set[str]:
    return {item.label for item in itertools.islice(listing, WHOLE) if item.label is not None}


def _check_labels(settings: Settings, listing: Listing, model: Model) -> None:
    """Check that a label is a class of the network.

    Errors   Refused
    """
    classes, labels = Classes(model.labels), sorted(_first_labels(listing))
    if any(classes.find(label) is not None for label in labels):
        return
    option = "The filter wrong" if settings.where == WRONG else "The target label"
    if not labels:
        raise Refused(f"{option} needs labels, but no image has one. Use folders named by class or a list with labels.")
    raise Refused(
        f"{option} needs labels that are classes of {model.name}, but none is: {shorten(labels, 8)}. Choose a matching "
        "network, or pass its class names (labels)."
    )


def run(
    job: Job,
    *,
    decode: Decode,
    workers: int | None = None,
    device: str = "cpu",
    report: Report | None = None,
    detail: Detail | None = None,
) -> Summary:
    """Explain all unfinished images of a job, and write its manifest.

    `report` is called before the first batch and after each, `detail` before it after each. An exception in them stops
    the run; finished batches are kept.

    Errors   Refused if the disk is full, or if the source has changed; those of `explainers`
    """
    waiting = deque[Batch]()  # those that are being decoded

    def batches(collector: Collector) -> Iterator[list[Item]]:
        """Yield the images of each batch, listed as they are needed. Decoding is ahead of the batch explained."""
        for number, partition in collector.start():
            for found in list_partition(number, partition, job.settings, job.shards.finished):
                if isinstance(found, Batch):
                    waiting.append(found)
                    yield found.items
                else:
                    collector.add(found)

    def work(collector: Collector) -> None:
        explainer = Explainer(job.model, job.settings, device)
        pin = devices.copies_asynchronously(torch.device(explainer.device))
        processes = default_workers(collector.todo) if workers is None else workers
        if collector.todo != 0:
            collector.show_progress()
        for decoded in decode_batches(batches(collector), decode, job.model.preparation, processes, pin):
            collector.add(waiting.popleft().result() | explained(decoded, explainer(decoded)))

    return complete(job, report, detail, work)


def default_workers(images: int | None) -> int:
    """Return the number of processes that decode; `images` is None for a source that is listed during the run."""
    return 0 if images is not None and images <= FEW else max(1, min(4, (os.cpu_count() or 2) // 2))


@dataclass(frozen=True)
class Job:
    """A prepared run: its images in batches and shards, and its folder, which contains the finished batches."""

    settings: Settings
    model: Model
    listing: Listing
    source: str
    shards: Shards

    def count(self) -> int | None:
        """Return the number of shards, or None if it is not known before the source has been listed."""
        return None if self.listing.count is None else -(-self.listing.count // self.settings.shard)

    def numbered(self) -> list[tuple[int, Partition]]:
        """Return the partitions with their numbers: 0 for a single one, or from 1."""
        return list(enumerate(self.listing.partitions, len(self.listing.partitions) > 1))

    def planned(self) -> Iterator[PlannedShard]:
        """List the source, and yield its shards in order, whether they are finished or not."""
        for number, partition in self.numbered():
            yield from plan(number, partition(), self.settings.shard, self.settings.batch_size)

    def finished_counts(self) -> dict[str, int] | None:
        """Return the counts in the manifest of a finished run, or None.

        Errors   Refused if a large source has changed; for others, the settings of the run have its hash
        """
        if not self.shards.is_finished:
            return None
        manifest = read_manifest(self.shards.folder)
        then = manifest.get("listing")
        if self.listing.count is None and then != digest_of(shard.digest for shard in self.planned()):
            raise Refused(
                f"The source has changed since the run in {str(self.shards.folder)!r} was finished: it has other "
                "images or labels now. Choose another folder."
            )
        return dict(manifest["counts"])

    def finish(self, seconds: float, numbers: Sequence[int]) -> dict[str, int]:
        """Write the manifest, and return the counts.

        Args     numbers: the shards in order, which are all closed
        Errors   Refused if the source has fewer images than the finished shards
        """
        self.shards.finished.check_end(numbers)
        found, labeled = self.shards.counts, self.shards.labeled
        counts = {name: found[name] for name in ("looked_at", "images", "unreadable")}
        counts |= {"labeled": labeled.total(), "correct": labeled.total() - found["wrong"]}
        preparation = self.model.preparation
        interpolation = getattr(preparation.interpolation, "value", preparation.interpolation)
        manifest = {
            "weights_sha256": self.shards.record["weights_sha256"],
            "classes": self.model.labels,
            "score": self.model.score_kind,
            "preprocessing": {**asdict(preparation), "interpolation": interpolation},
            "counts": counts,
            "labeled": {str(index): count for index, count in sorted(labeled.items()) if count},
            "source": self.source,
            "listing": digest_of(self.shards.finished.shards[number] for number in numbers),
            "directory": os.getcwd(),
            **provenance(seconds),
        }
        self.shards.finish(manifest, numbers)
        return counts


def provenance(seconds: float) -> dict[str, Any]:
    """Return the end of a manifest: the time, and the versions of Python and of the packages that results depend on."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"versions": versions, "finished": now, "seconds": round(seconds, 3)}


@dataclass(frozen=True)
class Summary:
    """The result of a run; `seconds` and `new`, the number of explained images, refer to this call."""

    folder: Path | str
    counts: dict[str, int]
    new: int
    seconds: float


def explained(decoded: DecodedBatch, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what an engine adds to the result of a batch: its rows, their errors and its stamp."""
    errors = sum(row.get("error") is not None for row in rows)
    return {"errors": errors, "stamp": Stamp.of(decoded.items), "rows": rows}


def complete(job: Job, report: Report | None, detail: Detail | None, work: Callable[[Collector], object]) -> Summary:
    """Write the manifest of a job after `work`, which gives all results to the collector.

    Errors   Refused if another process writes the run, or if the source has changed
    """
    start, new = time.perf_counter(), 0
    with job.shards:
        if (counts := job.finished_counts()) is None:
            collector = Collector(job, report, detail)
            work(collector)
            new, counts = collector.new, job.finish(time.perf_counter() - start, collector.numbers())
    return Summary(job.shards.folder, counts, new, time.perf_counter() - start)


class Collector:
    """Takes the results of an engine, in any order: writes rows, or notes what the workers have written."""

    def __init__(self, job: Job, report: Report | None, detail: Detail | None) -> None:
        self.job, self.report, self.detail = job, report, detail
        self.new, self.total, self._before = 0, job.listing.count, job.shards.before
        self.todo = None if self.total is None else self.total - self._before
        """The number of images in unfinished batches, or None if it is not known."""
        self._shards: dict[int, range] = {}
        """The shards of each partition that was listed to its end."""

    def start(self) -> list[tuple[int, Partition]]:
        """Return the partitions that are not finished, with their numbers."""
        finished = self.job.shards.finished.shards.keys()
        ended = {number for number, shards in self._shards.items() if finished >= {*shards}}
        return [(number, each) for number, each in self.job.numbered() if number not in ended]

    def numbers(self) -> list[int]:
        """Return the numbers of all shards in order."""
        return [shard for partition, _ in self.job.numbered() for shard in self._shards[partition]]

    def add(self, result: dict[str, Any]) -> None:
        """Take one result.

        Errors   those of the workers
        """
        if "error" in result:
            raise result["error"]
        if "end" in result:
            self._shards[result["end"]] = result["shards"]
        elif "commit" in result:
            self.job.shards.check_lock()
            self.job.shards.add_shard(result["shard"], result["commit"])
        else:
            self._add_batch(result)

    def _add_batch(self, result: dict[str, Any]) -> None:
        shard, index, closes = result["shard"], result["index"], result.get("closes", False)
        if warning := result.get("warning"):
            warnings.warn(warning, stacklevel=2)
        shards, finished = self.job.shards, self.job.shards.finished
        if index >= 0:
            if shard in finished.shards or index in finished.batches.get(shard, ()):
                return
            if not closes:  # otherwise a worker has written the rows, and writes the shard
                shards.write_batch(shard, index, result["rows"], result["stamp"])
            self.new += result["count"]
        if finished.add(result) and not closes:
            shards.check_lock()
            shards.add_shard(shard, shards.close(shard, result["batches"], Classes(self.job.model.labels)))
        if index >= 0:
            if self.detail is not None:
                self.detail(result["errors"], shard % PARTITION + 1, self.job.count())
            self.show_progress()

    def show_progress(self) -> None:
        """Report the number of finished images."""
        if self.report is not None:
            self.report(self._before + self.new, self.total)
