"""One machine: pictures are decoded in worker processes and explained in batches, shard by shard."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import torch

from dataset.errors import Refused
from dataset.explaining import Explainer
from dataset.items import Item
from dataset.pictures import Decode, decoded
from dataset.settings import LABEL, WRONG, Classes, Settings, weights_hash
from dataset.shards import Shards, open_run
from dataset.sources import Listing, list_items

if TYPE_CHECKING:
    from models import Model

Report = Callable[[int, int], object]
"""Called with the pictures that are done, and all of them."""
FEW = 64
"""Pictures for which no worker process is started: it takes seconds."""
PACKAGES = ("hooklens", "torchvision", "pillow", "pyarrow")


@dataclass(frozen=True)
class Summary:
    """What a run came to: `seconds` are this call's, and `new` the pictures that it explained."""

    folder: Path
    counts: dict[str, int]
    new: int
    seconds: float


@dataclass(frozen=True)
class Job:
    """A run that is ready to begin: its pictures in batches and shards, and the folder that says what is done."""

    settings: Settings
    model: Model
    listing: Listing
    source: str
    shards: Shards

    @property
    def items(self) -> list[Item]:
        """All pictures."""
        return self.listing.items

    def count(self) -> int:
        """Shards of all pictures."""
        return -(-len(self.items) // self.settings.shard)

    def batches(self, shard: int) -> list[list[Item]]:
        """The pictures of a shard, in batches; the same whatever was done before."""
        size, first = self.settings.batch_size, shard * self.settings.shard
        own = self.items[first : first + self.settings.shard]
        return [own[start : start + size] for start in range(0, len(own), size)]

    def missing(self) -> Iterator[tuple[int, int, list[Item]]]:
        """Shard, place and pictures of every batch that is not there yet."""
        for shard in range(self.count()):
            if not self.shards.has(shard):
                for place, batch in enumerate(self.batches(shard)):
                    if not self.shards.has(shard, place):
                        yield shard, place, batch

    def finish(self, seconds: float) -> dict[str, int]:
        """Close what is whole, and write the manifest; returns the counts."""
        counts = {"looked_at": len(self.items), "pictures": 0, "unreadable": 0}
        classes = Classes(self.model.labels)
        labelled, wrong = Counter(classes.find(item.label) for item in self.items), 0
        for shard in range(self.count()):
            self.shards.close(shard, len(self.batches(shard)))
            rows = self.shards.rows_of(shard)
            counts["pictures"] += len(rows)
            counts["unreadable"] += len(rows) - rows["error"].null_count
            wrong += int(pc.sum(pc.invert(rows["correct"])).as_py() or 0)
            labelled.subtract(
                classes.find(label) for label in rows.filter(rows["error"].is_valid())["label"].to_pylist()
            )
        del labelled[None]  # no label, or one that the network does not know
        counts |= {"labelled": labelled.total(), "correct": labelled.total() - wrong}
        manifest = {
            "versions": versions(),
            "weights_sha256": self.shards.record["weights_sha256"],
            "classes": self.model.labels,
            "counts": counts,
            "labelled": {str(index): count for index, count in sorted(labelled.items()) if count},
            "source": self.source,
            "directory": os.getcwd(),
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
        }
        self.shards.finish(manifest, self.count())
        return counts


def prepare(
    settings: Settings,
    source: str,
    out: str | Path,
    *,
    limit: int | None = None,
    device: str = "cpu",
    model: Model | None = None,
) -> Job:
    """Everything that can be refused is refused here, before any work.

    Errors   Refused; models.ModelUnavailable
    """
    settings.check()
    listing = list_items(source, None if settings.only_label else limit)
    model = model or load(settings)
    if settings.only_label:
        listing = _labelled(listing, settings.only_label, model)
        listing = replace(listing, items=listing.items[:limit])
    if settings.target == LABEL or settings.where == WRONG:
        _check_labels(settings, listing, model)
    return begin(settings, listing, source, out, model, device)


def begin(settings: Settings, listing: Listing, source: str, out: str | Path, model: Model, device: str = "cpu") -> Job:
    """A job of pictures that are listed already.

    Errors   Refused; those of the library
    """
    explainer = Explainer(model, settings, device)
    explainer.check()
    listed = "".join(f"{item.path}\0{item.label}\n" for item in listing.items)
    count = "1 picture" if len(listing.items) == 1 else f"{len(listing.items)} pictures"
    record = settings.record(model, f"{count} ({hashlib.sha256(listed.encode()).hexdigest()[:16]})")
    # Sums in another number of threads differ in their last bit.
    record |= {"layer": explainer.options.get("layer"), "threads": torch.get_num_threads() if device == "cpu" else None}
    record["weights_sha256"] = weights_hash(model)
    return Job(settings, model, listing, source, Shards(out, record))


def load(settings: Settings) -> Model:
    """The network of a run.

    Errors   models.ModelUnavailable
    """
    import models  # its settings are read at the first use

    model = models.load_model(settings.model, **settings.own)
    if model.task != "classification":
        raise Refused(f"{model.name} is for {model.task}. Choose a classifier with --model.")
    if model.channels not in (1, 3):
        raise Refused(f"{model.name} takes {model.channels} channels, photographs have 3. Choose another --model.")
    return model


def _labelled(listing: Listing, name: str, model: Model) -> Listing:
    classes = Classes(model.labels)
    wanted = classes.find(name)
    kept = [
        item
        for item in listing.items
        if item.label == name or (wanted is not None and classes.find(item.label) == wanted)
    ]
    if not kept:
        labels = sorted({item.label for item in listing.items if item.label})
        there = f"The labels are {_some(labels)}." if labels else "The source has no labels."
        raise Refused(f"No picture has the label {name!r}. {there}")
    return replace(listing, items=kept)


def _check_labels(settings: Settings, listing: Listing, model: Model) -> None:
    """Errors   Refused where labels are asked for, and none is a class of the network"""
    classes, labels = Classes(model.labels), sorted({item.label for item in listing.items if item.label is not None})
    if any(classes.find(label) is not None for label in labels):
        return
    asked = "--where wrong" if settings.where == WRONG else "--target label"
    if not labels:
        raise Refused(f"{asked} needs labels, and no picture has one. Use folders named by class, or a list with them.")
    raise Refused(
        f"{asked} needs labels that are classes of {model.name}, and none is: {_some(labels)}. Choose the network that "
        "knows them, or give its class names with --labels."
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "")


def run(
    job: Job, *, decode: Decode, workers: int | None = None, device: str = "cpu", report: Report | None = None
) -> Summary:
    """Explain all pictures of a job that are not explained yet, and write its manifest.

    `report` is called after each batch; raising in it ends the run, and what is done stays.

    Errors   Refused where the disk is full; those of the library
    """
    began = time.perf_counter()
    todo = [] if job.shards.is_finished else list(job.missing())
    new = sum(len(batch) for _, _, batch in todo)
    done = len(job.items) - new
    if workers is None:
        workers = 0 if new <= FEW else max(1, min(4, (os.cpu_count() or 2) // 2))
    explainer = Explainer(job.model, job.settings, device)
    batches = decoded([batch for _, _, batch in todo], decode, job.model.preparation, workers)
    following = [shard for shard, _, _ in [*todo[1:], (-1, 0, [])]][: len(todo)]
    for (shard, place, items), next_shard, batch in zip(todo, following, batches, strict=True):
        job.shards.keep(shard, place, explainer(batch))
        if next_shard != shard:
            job.shards.close(shard, len(job.batches(shard)))
        done += len(items)
        if report is not None:
            report(done, len(job.items))
    seconds = time.perf_counter() - began
    return Summary(job.shards.folder, _counts(job, seconds), new, seconds)


def _counts(job: Job, seconds: float) -> dict[str, int]:
    if not job.shards.is_finished:
        return job.finish(seconds)
    return dict(open_run(job.shards.folder).manifest["counts"])


def versions() -> dict[str, str]:
    """Python, and the packages that numbers depend on."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
