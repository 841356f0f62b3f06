"""Which images belong to which shard and batch, and what of it is finished."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from saliscope.errors import Refused
from saliscope.runs.items import Item
from saliscope.runs.settings import Settings
from saliscope.runs.sources import Partition

PARTITION = 10**9
"""Numbers of shards in a partition. Shard k of partition p has the number p * PARTITION + k."""
KEY = b"saliscope"
"""Key of the stamp in the metadata of the file of a batch."""


@dataclass(frozen=True)
class Stamp:
    """What a batch is about: a hash of the paths and labels of its images, and the labels.

    It is stored with the rows, which may lack images (`where="wrong"`), so that a shard can be counted by any machine.
    """

    digest: str
    labels: list[str | None]

    @classmethod
    def of(cls, items: Sequence[Item]) -> Stamp:
        """Return the stamp of the images of a batch."""
        text = "".join(f"{item.path}\0{item.label}\n" for item in items)
        digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
        return cls(digest, [item.label for item in items])

    def metadata(self) -> dict[bytes, bytes]:
        """Return the stamp as metadata of an Arrow file."""
        return {KEY: json.dumps({"digest": self.digest, "labels": self.labels}).encode()}

    @classmethod
    def read(cls, metadata: Mapping[bytes, bytes] | None) -> Stamp:
        """Return the stamp in the metadata of a batch.

        Errors   KeyError, ValueError or TypeError if the file is not a batch of a run
        """
        return cls(**json.loads((metadata or {})[KEY]))


def digest_of(parts: Iterable[str]) -> str:
    """Return the hash of a shard from those of its batches, or of a run from those of its shards."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PlannedShard:
    """A shard: its number, and its images in batches, in order of path."""

    number: int
    batches: list[list[Item]]

    @property
    def digest(self) -> str:
        """The hash of the paths and labels."""
        return digest_of(Stamp.of(batch).digest for batch in self.batches)


def plan(partition: int, blocks: Iterable[list[Item]], shard: int, batch: int) -> Iterator[PlannedShard]:
    """Cut the images of a partition into shards of `shard` images, in batches of `batch` images.

    The images of a shard are sorted by path. A partition ends with a smaller shard.
    """
    images = itertools.chain.from_iterable(blocks)
    for number in itertools.count(partition * PARTITION):
        items = sorted(itertools.islice(images, shard), key=lambda item: item.path)
        if not items:
            return
        yield PlannedShard(number, [items[start : start + batch] for start in range(0, len(items), batch)])


@dataclass
class Finished:
    """The finished shards and batches of a run, with the hashes of their images."""

    folder: str
    shards: dict[int, str] = field(default_factory=dict)
    batches: dict[int, dict[int, str]] = field(default_factory=dict)

    def missing(self, shard: PlannedShard) -> list[tuple[int, list[Item]]]:
        """Return index and images of the unfinished batches of a shard.

        Errors   Refused if a finished part has other images than the source has now
        """
        if shard.number in self.shards:
            self._check(self.shards[shard.number], shard.digest, shard)
            return []
        known = self.batches.get(shard.number, {})
        for index, digest in known.items():
            batch = shard.batches[index] if index < len(shard.batches) else []
            self._check(digest, Stamp.of(batch).digest, shard)
        return [(index, items) for index, items in enumerate(shard.batches) if index not in known]

    def _check(self, then: str, now: str, shard: PlannedShard) -> None:
        if then != now:
            first, last = shard.batches[0][0].path, shard.batches[-1][-1].path
            raise Refused(
                f"The source has changed since the run in {self.folder!r} was started: shard {shard.number} had other "
                f"images or labels than it has now ({first} to {last}). Restore the source, or choose another folder."
            )

    def add(self, result: Mapping[str, Any]) -> bool:
        """Note the batch of a result, which may arrive twice from Ray; return whether its shard can be written."""
        if result["shard"] in self.shards:
            return False
        known = self.batches.setdefault(result["shard"], {})
        if result["index"] >= 0:
            known[result["index"]] = result["stamp"].digest
        return len(known) == result["batches"]

    def check_end(self, planned: Sequence[int]) -> None:
        """Check that no other shard is finished than the planned ones.

        Errors   Refused
        """
        if others := set(self.shards) - set(planned):
            raise Refused(
                f"The source has changed since the run in {self.folder!r} was started: it has fewer images now, and "
                f"{len(others)} finished shards are left over. Restore the source, or choose another folder."
            )


@dataclass(frozen=True)
class Batch:
    """An unfinished batch of a shard with a number of `batches`."""

    shard: int
    index: int
    items: list[Item]
    batches: int

    def result(self) -> dict[str, Any]:
        """Return the result of the batch without its rows."""
        return {"shard": self.shard, "index": self.index, "batches": self.batches, "count": len(self.items)}


def list_partition(
    number: int, partition: Partition, settings: Settings, finished: Finished
) -> Iterator[Batch | dict[str, Any]]:
    """Yield the unfinished batches of a partition in order, and the results for which nothing has to be computed.

    These are shards whose batches are all finished, with the index -1, and the end of the partition with its shards.

    Errors   Refused if the source cannot be listed, or if it has changed since its batches were finished
    """
    shards = range(number * PARTITION, number * PARTITION)
    for shard in plan(number, partition(), settings.shard, settings.batch_size):
        missing = finished.missing(shard)
        for index, items in missing:
            yield Batch(shard.number, index, items, len(shard.batches))
        if not missing and shard.number not in finished.shards:
            yield Batch(shard.number, -1, [], len(shard.batches)).result()
        shards = range(shards.start, shard.number + 1)
    yield {"end": number, "shards": shards}
