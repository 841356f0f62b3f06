"""Runs on one machine: images are decoded in worker processes and explained in batches, shard by shard."""

from __future__ import annotations

import itertools
import os
import warnings
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from saliscope import zoo
from saliscope.errors import Refused
from saliscope.runs.decoding import Decode, decode_batches
from saliscope.runs.explaining import Explainer, find_sentences
from saliscope.runs.formats import shorten
from saliscope.runs.items import Item
from saliscope.runs.job import Collector, Detail, Job, Report, Summary, complete, explained
from saliscope.runs.settings import LABEL, WRONG, Classes, Settings
from saliscope.runs.shards import Shards
from saliscope.runs.shards.planning import Batch, End, Stamp, list_partition
from saliscope.runs.sources import Listing, list_items
from saliscope.runs.sources.partitions import WHOLE
from saliscope.zoo import Model, devices
from saliscope.zoo.weights import weights_hash

FEW = 64
"""Number of images below which no worker processes are started, because starting them takes seconds."""


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
