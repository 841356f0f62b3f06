"""What the engines share: they send their results, in any order, to the process that holds the lock of the run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saliscope.runs.decoding import DecodedBatch
from saliscope.runs.shards.planning import PARTITION, End, Stamp
from saliscope.runs.sources import Partition

if TYPE_CHECKING:
    from saliscope.runs.run import Job

Report = Callable[[int, int | None], object]
"""Called with the number of finished images and the total number, None for a source that is listed during the run."""
Detail = Callable[[int, int, int | None], object]
"""Called with the number of errors in a batch, its shard from 1, and the number of shards, None if it is not known."""


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
