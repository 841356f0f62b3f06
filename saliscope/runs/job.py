"""A prepared run, and what its engines share: they send their results, in any order, to the process with the lock."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from saliscope.errors import Refused
from saliscope.runs.decoding import DecodedBatch
from saliscope.runs.settings import Classes, Settings
from saliscope.runs.shards import Shards, read_manifest
from saliscope.runs.shards.planning import PARTITION, End, PlannedShard, Stamp, digest_of, plan
from saliscope.runs.sources import Listing, Partition
from saliscope.zoo import Model, Preparation

Report = Callable[[int, int | None], object]
"""Called with the number of finished images and the total number, None for a source that is listed during the run."""
Detail = Callable[[int, int, int | None], object]
"""Called with the number of errors in a batch, its shard from 1, and the number of shards, None if it is not known."""
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
            "weights_sha256": self.shards.record["weights_sha256"],
            "classes": self.model.labels,
            "score": self.model.score_kind,
            "preprocessing": preprocessing_record(self.model.preparation),
            "counts": counts,
            "labeled": {str(index): count for index, count in sorted(labeled.items()) if count},
            "source": self.source,
            "listing": digest_of(self.shards.finished.shards[number] for number in numbers),
            "directory": os.getcwd(),
            **provenance(seconds),
        }
        self.shards.finish(manifest, numbers)
        return counts


def preprocessing_record(preparation: Preparation) -> dict[str, Any]:
    """Return the arguments of an equal `Preparation`, which the manifest stores as JSON."""
    filter_name = getattr(preparation.interpolation, "value", preparation.interpolation)
    return {**asdict(preparation), "interpolation": filter_name}


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
    with job.shards.writing():
        if (counts := job.finished_counts()) is None:
            collector = Collector(job, report, detail)
            work(collector)
            new, counts = collector.new, job.finish(time.perf_counter() - start, collector.numbers())
    return Summary(job.shards.folder, counts, new, time.perf_counter() - start)


class Collector:
    """Takes the results of an engine, in any order: writes rows, or notes what the workers have written."""

    def __init__(self, job: Job, report: Report | None, detail: Detail | None) -> None:
        self.job, self.report, self.detail = job, report, detail
        self.new, self.total = 0, job.listing.count
        self.todo = None if self.total is None else job.count_missing()
        """The number of images in unfinished batches, or None if it is not known."""
        self._before = {} if self.total is None or self.todo is None else {0: self.total - self.todo}
        """Images of each partition that were finished before."""
        self._ends: dict[int, End] = {}
        self._warned: set[str] = set()

    def start(self) -> list[tuple[int, Partition]]:
        """Return the partitions that are not finished, with their numbers."""
        return [(number, each) for number, each in self.job.numbered() if not self._is_finished(number)]

    def _is_finished(self, partition: int) -> bool:
        return partition in self._ends and self.job.shards.finished.shards.keys() >= {*self._numbers(partition)}

    def _numbers(self, partition: int) -> range:
        first = partition * PARTITION
        return range(first, first + self._ends[partition].shards)

    def numbers(self) -> list[int]:
        """Return the numbers of all shards in order."""
        return [shard for partition, _ in self.job.numbered() for shard in self._numbers(partition)]

    def add(self, result: dict[str, Any]) -> None:
        """Take one result.

        Errors   those of the workers
        """
        if "error" in result:
            raise result["error"]
        if "end" in result:
            end: End = result["end"]
            self._count(end.partition, end.finished)
            self._ends[end.partition] = end
        elif "commit" in result:
            self.job.shards.check_lock()
            self.job.shards.add_shard(result["shard"], result["commit"])
        else:
            self._add_batch(result)

    def _count(self, partition: int, finished: int) -> None:
        if self.total is None and partition not in self._ends:
            self._before[partition] = max(finished, self._before.get(partition, 0))

    def _add_batch(self, result: dict[str, Any]) -> None:
        shard, index, closes = result["shard"], result["index"], result.get("closes", False)
        if (warning := result.get("warning")) and warning not in self._warned:
            self._warned.add(warning)
            warnings.warn(warning, stacklevel=2)
        self._count(shard // PARTITION, result["finished"])
        shards, finished = self.job.shards, self.job.shards.finished
        if index >= 0:
            if shard in finished.shards or index in finished.batches.get(shard, ()):
                return
            if not closes:  # otherwise a worker has written the rows, and writes the shard
                shards.write_batch(shard, index, result["rows"], result["stamp"])
            self.new += result["count"]
        if finished.add(result) and not closes:
            self.job.close(shard, result["batches"])
        if index >= 0:
            if self.detail is not None:
                self.detail(result["errors"], shard % PARTITION + 1, self.job.count())
            self.show_progress()

    def show_progress(self) -> None:
        """Report the number of finished images."""
        if self.report is not None:
            self.report(sum(self._before.values()) + self.new, self.total)
