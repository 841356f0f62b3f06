"""Runs on one machine: images are decoded in worker processes and explained in batches, shard by shard."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import platform
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from saliscope import zoo
from saliscope.errors import Refused
from saliscope.runs.collecting import Collector, Detail, Report, Summary, complete, explained
from saliscope.runs.decoding import Decode, decode_batches
from saliscope.runs.explaining import Explainer, find_sentences
from saliscope.runs.formats import shorten
from saliscope.runs.items import Item
from saliscope.runs.settings import LABEL, WRONG, Classes, Settings
from saliscope.runs.shards import Shards, read_manifest
from saliscope.runs.shards.planning import Batch, End, PlannedShard, Stamp, digest_of, list_partition, plan
from saliscope.runs.sources import Listing, Partition, list_items
from saliscope.runs.sources.partitions import WHOLE
from saliscope.zoo import Model, Preparation, devices
from saliscope.zoo.weights import weights_hash

FEW = 64
"""Number of images below which no worker processes are started, because starting them takes seconds."""
PACKAGES = ("saliscope", "torchvision", "pillow", "pyarrow")


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

    def count_missing(self) -> int:
        """Return the number of images in unfinished batches.

        Errors   Refused if the source has changed since the first batch was written
        """
        return sum(len(batch) for shard in self.planned() for _, batch in self.shards.finished.missing(shard))

    def close(self, shard: int, batches: int) -> None:
        """Write the Parquet file and the commit of a shard whose batches are all finished.

        Errors   Refused if the disk is full, or the store cannot be written
        """
        if shard not in self.shards.finished.shards:
            self.shards.check_lock()
            self.shards.add_shard(shard, self.shards.close(shard, batches, Classes(self.model.labels)))

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
        manifest = {
            "versions": versions(),
            "weights_sha256": self.shards.record["weights_sha256"],
            "classes": self.model.labels,
            "score": self.model.score_kind,
            "preprocessing": preprocessing_record(self.model.preparation),
            "counts": counts,
            "labeled": {str(index): count for index, count in sorted(labeled.items()) if count},
            "source": self.source,
            "listing": digest_of(self.shards.finished.shards[number] for number in numbers),
            "directory": os.getcwd(),
            "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
        }
        self.shards.finish(manifest, numbers)
        return counts


def preprocessing_record(preparation: Preparation) -> dict[str, Any]:
    """Return the arguments of an equal `Preparation`, which the manifest stores as JSON."""
    filter_name = getattr(preparation.interpolation, "value", preparation.interpolation)
    return {**asdict(preparation), "interpolation": filter_name}


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
    record = settings.record(model, _describe(listing))
    # Sums with another number of threads differ in their last bits.
    threads = torch.get_num_threads() if explainer.device == "cpu" else None
    record |= {"layer": explainer.options.get("layer"), "threads": threads}
    record["weights_sha256"] = weights_hash(model)
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

    def work(collector: Collector) -> None:
        _explain(collector, decode, workers, Explainer(job.model, job.settings, device))

    return complete(job, report, detail, work)


def _explain(collector: Collector, decode: Decode, workers: int | None, explainer: Explainer) -> None:
    """Explain all unfinished images."""
    job, waiting = collector.job, deque[Batch]()  # those that are being decoded

    def batches() -> Iterator[list[Item]]:
        """Yield the images of each batch, listed as they are needed. Decoding is ahead of the batch explained."""
        for number, partition in collector.start():
            for found in list_partition(number, partition, job.settings, job.shards.finished):
                if isinstance(found, Batch) and found.items:
                    waiting.append(found)
                    yield found.items
                else:
                    collector.add({"end": found} if isinstance(found, End) else found.result())

    if workers is None:
        workers = default_workers(collector.todo)
    pin = devices.copies_asynchronously(torch.device(explainer.device))
    if collector.todo != 0:
        collector.show_progress()
    for decoded in decode_batches(batches(), decode, job.model.preparation, workers, pin):
        collector.add(waiting.popleft().result() | explained(decoded, explainer(decoded)))


def default_workers(images: int | None) -> int:
    """Return the number of processes that decode; `images` is None for a source that is listed during the run."""
    return 0 if images is not None and images <= FEW else max(1, min(4, (os.cpu_count() or 2) // 2))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    result = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            result[name] = metadata.version(name)
    return result
