"""The images of a source, listed lazily: in partitions, and in each of them block by block."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from saliscope.runs.items import Item

WHOLE = 65_536
"""Images of a source that is listed at once and sorted by path; larger ones are listed lazily."""
Partition = Callable[[], Iterator[list[Item]]]
"""A part of a source that any machine can list: a file of a set of tars or tables, or a whole source. Each call lists
the images again, in lists of any length that are sorted by path. It is a partial function, so that it can be pickled.
"""


@dataclass(frozen=True)
class Listing:
    """The images of a source. A small source is one partition whose images are known and sorted by path."""

    partitions: Sequence[Partition]
    kind: str
    """"folder", "list", "tar" or "huggingface"."""
    known: list[Item] | None = None
    """All images of a small source."""

    @classmethod
    def of(cls, items: list[Item], kind: str) -> Listing:
        """Return the listing of images that are all known."""
        return cls((partial(iter, [items]),), kind, items)

    @property
    def items(self) -> list[Item]:
        """All images. For a large source, this lists it."""
        return list(self) if self.known is None else self.known

    @property
    def count(self) -> int | None:
        """The number of images, or None for a large source."""
        return None if self.known is None else len(self.known)

    def __iter__(self) -> Iterator[Item]:
        return (item for partition in self.partitions for block in partition() for item in block)

    def select(self, keep: Callable[[Item], bool]) -> Listing:
        """Return the images for which `keep` is true. It is called when they are listed."""
        if self.known is not None:
            return Listing.of([item for item in self.known if keep(item)], self.kind)
        return replace(self, partitions=tuple(partial(_select, part, keep) for part in self.partitions))

    def first(self, limit: int | None) -> Listing:
        """Return the first images. A set of files is listed as far as the limit to know what each file contributes."""
        if limit is None:
            return self
        if self.known is not None:
            return Listing.of(self.known[:limit], self.kind)
        if len(self.partitions) == 1:
            return replace(self, partitions=(partial(_cut, self.partitions[0], limit),))
        parts: list[Partition] = []
        for part in self.partitions:
            count = sum(1 for _ in itertools.islice(itertools.chain.from_iterable(part()), limit))
            parts.append(partial(_cut, part, count))
            limit -= count
            if not limit:
                break
        return replace(self, partitions=tuple(parts))


def _select(partition: Partition, keep: Callable[[Item], bool]) -> Iterator[list[Item]]:
    for block in partition():
        yield [item for item in block if keep(item)]


def _cut(partition: Partition, limit: int) -> Iterator[list[Item]]:
    for block in partition():
        yield block[:limit]
        limit -= len(block)
        if limit <= 0:
            return
