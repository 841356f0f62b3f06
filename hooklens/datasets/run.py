"""Runs on one machine: images are decoded in worker processes and explained in batches, shard by shard."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import torch

from hooklens.datasets.decoding import Decode, decode_batches
from hooklens.datasets.explaining import Explainer
from hooklens.datasets.items import Item
from hooklens.datasets.sentences import find_sentences
from hooklens.datasets.settings import LABEL, WRONG, Classes, Settings, weights_hash
from hooklens.datasets.shards import Shards, read_manifest
from hooklens.datasets.sources import Listing, list_items
from hooklens.errors import Refused
from hooklens.zoo import devices

if TYPE_CHECKING:
    from hooklens.zoo import Model

Report = Callable[[int, int], object]
"""Called with the number of finished images and the total number."""
FEW = 64
"""Number of images below which no worker processes are started, because starting them takes seconds."""
PACKAGES = ("hooklens", "torchvision", "pillow", "pyarrow")


@dataclass(frozen=True)
class Summary:
    """The result of a run; `seconds` and `new`, the number of explained images, refer to this call."""

    folder: Path | str
    counts: dict[str, int]
    new: int
    seconds: float


@dataclass(frozen=True)
class Job:
    """A prepared run: its images in batches and shards, and its folder, which contains the finished batches."""

    settings: Settings
    model: Model
    listing: Listing
    source: str
    shards: Shards

    @property
    def items(self) -> list[Item]:
        """All images."""
        return self.listing.items

    def count(self) -> int:
        """Return the number of shards."""
        return -(-len(self.items) // self.settings.shard)

    def batches(self, shard: int) -> list[list[Item]]:
        """Return the images of a shard in batches, whether they are finished or not."""
        size, first = self.settings.batch_size, shard * self.settings.shard
        own = self.items[first : first + self.settings.shard]
        return [own[start : start + size] for start in range(0, len(own), size)]

    def labels(self, shard: int) -> list[str | None]:
        """Return the labels of the images of a shard."""
        return [item.label for batch in self.batches(shard) for item in batch]

    def missing(self) -> Iterator[tuple[int, int, list[Item]]]:
        """Yield shard, batch index and images of every unfinished batch."""
        for shard in range(self.count()):
            if not self.shards.has(shard):
                for index, batch in enumerate(self.batches(shard)):
                    if not self.shards.has(shard, index):
                        yield shard, index, batch

    def close(self, shard: int) -> None:
        """Write the Parquet file and the commit of a shard whose batches are all finished.

        Errors   Refused if the disk is full, or the store cannot be written
        """
        if not self.shards.is_committed(shard):
            count = len(self.batches(shard))
            rows = self.shards.merge(shard, count)
            counts = count_rows(self.labels(shard), rows, Classes(self.model.labels))
            self.shards.files.commit(shard, count, counts)
            self.shards.add_shard(shard, counts)

    def stored_counts(self) -> dict[str, int] | None:
        """Return the counts in the manifest of a finished run, or None."""
        return dict(read_manifest(self.shards.folder)["counts"]) if self.shards.is_finished else None

    def finish(self, seconds: float) -> dict[str, int]:
        """Close the complete shards, write the manifest, and return the counts."""
        for shard in range(self.count()):
            self.close(shard)
        found, labelled = self.shards.counts, self.shards.labelled
        counts = {name: found[name] for name in ("looked_at", "pictures", "unreadable")}
        counts |= {"labelled": labelled.total(), "correct": labelled.total() - found["wrong"]}
        manifest = {
            "versions": versions(),
            "weights_sha256": self.shards.record["weights_sha256"],
            "classes": self.model.labels,
            "score": self.model.score_kind,
            "counts": counts,
            "labelled": {str(index): count for index, count in sorted(labelled.items()) if count},
            "source": self.source,
            "directory": os.getcwd(),
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
        }
        self.shards.finish(manifest, range(self.count()))
        return counts


def count_rows(labels: Sequence[str | None], rows: pa.Table, classes: Classes) -> dict[str, dict[str, int]]:
    """Return the counts of a shard, and for each class the number of readable images with this label."""
    labelled = Counter(classes.find(label) for label in labels)
    errors = rows.filter(rows["error"].is_valid())
    labelled.subtract(classes.find(label) for label in errors["label"].to_pylist())
    wrong = int(pc.sum(pc.invert(rows["correct"])).as_py() or 0)
    counts = {"looked_at": len(labels), "pictures": len(rows), "unreadable": len(errors), "wrong": wrong}
    known = {str(index): count for index, count in labelled.items() if index is not None and count}
    return {"counts": counts, "labelled": known}


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
        listing = _select_label(listing, settings.only_label, model)
        listing = replace(listing, items=listing.items[:limit])
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
    paths = "".join(f"{item.path}\0{item.label}\n" for item in listing.items)
    # "pictures" as in version 0.8.0, so that its runs can be resumed
    count = "1 picture" if len(listing.items) == 1 else f"{len(listing.items)} pictures"
    record = settings.record(model, f"{count} ({hashlib.sha256(paths.encode()).hexdigest()[:16]})")
    # Sums with another number of threads differ in their last bits.
    threads = torch.get_num_threads() if explainer.device == "cpu" else None
    record |= {"layer": explainer.options.get("layer"), "threads": threads}
    record["weights_sha256"] = weights_hash(model)
    return Job(settings, model, listing, source, Shards(out, record))


def load(settings: Settings) -> Model:
    """Load the network of a run.

    Errors   zoo.ModelUnavailable
    """
    from hooklens import zoo  # its settings are read at the first use

    model = zoo.load_model(settings.model, **settings.own)
    if model.task != "classification":
        raise Refused(f"{model.name} is a {model.task} model. Choose a classifier with --model.")
    if model.channels not in (1, 3):
        raise Refused(f"{model.name} needs {model.channels} channels, but images have 3. Choose another --model.")
    return model


def _select_label(listing: Listing, name: str, model: Model) -> Listing:
    classes = Classes(model.labels)
    wanted = classes.find(name)
    items = [
        item
        for item in listing.items
        if item.label == name or (wanted is not None and classes.find(item.label) == wanted)
    ]
    if not items:
        labels = sorted({item.label for item in listing.items if item.label})
        known = f"The labels are {_shorten(labels)}." if labels else "The source has no labels."
        raise Refused(f"No image has the label {name!r}. {known}")
    return replace(listing, items=items)


def _check_labels(settings: Settings, listing: Listing, model: Model) -> None:
    """Check that a label is a class of the network.

    Errors   Refused
    """
    classes, labels = Classes(model.labels), sorted({item.label for item in listing.items if item.label is not None})
    if any(classes.find(label) is not None for label in labels):
        return
    option = "--where wrong" if settings.where == WRONG else "--target label"
    if not labels:
        raise Refused(f"{option} needs labels, but no image has one. Use folders named by class or a list with labels.")
    raise Refused(
        f"{option} needs labels that are classes of {model.name}, but none is: {_shorten(labels)}. Choose a matching "
        "network, or pass its class names with --labels."
    )


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "")


def run(
    job: Job,
    *,
    decode: Decode,
    workers: int | None = None,
    device: str = "cpu",
    report: Report | None = None,
    detail: Callable[[int, int, int], object] | None = None,
) -> Summary:
    """Explain all unfinished images of a job, and write its manifest.

    `report` is called after each batch. An exception in it stops the run; finished batches are kept. `detail` is called
    before it with the number of images of the batch that could not be read, the shard from 1, and the number of shards.

    Errors   Refused if the disk is full; those of `explainers`
    """
    start = time.perf_counter()
    with job.shards.writing():
        new = _run(job, decode, workers, Explainer(job.model, job.settings, device), report, detail)
        seconds = time.perf_counter() - start
        counts = job.stored_counts() or job.finish(seconds)
    return Summary(job.shards.folder, counts, new, seconds)


def _run(
    job: Job,
    decode: Decode,
    workers: int | None,
    explainer: Explainer,
    report: Report | None,
    detail: Callable[[int, int, int], object] | None,
) -> int:
    """Explain all unfinished images, and return their number."""
    todo = [] if job.shards.is_finished else list(job.missing())
    new = sum(len(batch) for _, _, batch in todo)
    done = len(job.items) - new
    if workers is None:
        workers = 0 if new <= FEW else max(1, min(4, (os.cpu_count() or 2) // 2))
    pin = devices.copies_asynchronously(torch.device(explainer.device))
    batches = decode_batches([batch for _, _, batch in todo], decode, job.model.preparation, workers, pin)
    following = [shard for shard, _, _ in [*todo[1:], (-1, 0, [])]][: len(todo)]
    for (shard, index, items), next_shard, batch in zip(todo, following, batches, strict=True):
        job.shards.write_batch(shard, index, explainer(batch))
        if next_shard != shard:
            job.close(shard)
        done += len(items)
        if detail is not None:
            detail(len(batch.errors) - batch.errors.count(None), shard + 1, job.count())
        if report is not None:
            report(done, len(job.items))
    return new


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    result = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in PACKAGES:
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return result
