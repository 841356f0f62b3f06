"""The images of a source, listed lazily: in partitions, and in each of them block by block."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from saliscope.datasets.items import Item

WHOLE = 65_536
"""Images of a source that is listed at once and sorted by path; larger ones are listed lazily."""
Blocks = Callable[[], Iterator[list[Item]]]
"""Lists the images again with each call, in lists of any length; sorted by path within each list."""


@dataclass(frozen=True)
class Partition:
    """A part of a source that any machine can list: a file of a set of tars or tables, or a whole source."""

    name: str
    blocks: Blocks

    def items(self) -> Iterator[Item]:
        """Yield the images in order."""
        return (item for block in self.blocks() for item in block)


@dataclass(frozen=True)
class Listing:
    """The images of a source. A small source is one partition whose images are known and sorted by path."""

    partitions: Sequence[Partition]
    kind: str
    """"folder", "list", "tar" or "huggingface"."""
    classes: list[str] | None
    """Class names: as declared by a Hugging Face dataset, or else sorted; None if there are no labels, or for a large
    source without declared ones.
    """
    known: list[Item] | None = None
    """All images of a small source."""

    @classmethod
    def of(cls, items: list[Item], kind: str, classes: list[str] | None) -> Listing:
        """Return the listing of images that are all known."""
        return cls((Partition("", _Known(items)),), kind, classes, items)

    @property
    def items(self) -> list[Item]:
        """All images. For a large source, this lists it."""
        return list(self) if self.known is None else self.known

    @property
    def count(self) -> int | None:
        """The number of images, or None for a large source."""
        return None if self.known is None else len(self.known)

    def __iter__(self) -> Iterator[Item]:
        return (item for partition in self.partitions for item in partition.items())

    def select(self, keep: Callable[[Item], bool]) -> Listing:
        """Return the images for which `keep` is true. It is called when they are listed."""
        if self.known is not None:
            return Listing.of([item for item in self.known if keep(item)], self.kind, self.classes)
        parts = [replace(part, blocks=_Selected(part.blocks, keep)) for part in self.partitions]
        return replace(self, partitions=tuple(parts))

    def first(self, limit: int | None) -> Listing:
        """Return the first images. A set of files is listed as far as the limit to know what each file contributes."""
        if limit is None:
            return self
        if self.known is not None:
            return Listing.of(self.known[:limit], self.kind, self.classes)
        if len(self.partitions) == 1:
            (whole,) = self.partitions
            return replace(self, partitions=(replace(whole, blocks=_First(whole.blocks, limit)),))
        parts: list[Partition] = []
        for part in self.partitions:
            count = sum(1 for _ in itertools.islice(part.items(), limit))
            parts.append(replace(part, blocks=_First(part.blocks, count)))
            limit -= count
            if not limit:
                break
        return replace(self, partitions=tuple(parts))


# The functions that list a partition are sent to other machines, so they are objects that can be pickled.


@dataclass(frozen=True)
class _Known:
    items: list[Item]

    def __call__(self) -> Iterator[list[Item]]:
        yield self.items


@dataclass(frozen=True)
class _Selected:
    blocks: Blocks
    keep: Callable[[Item], bool]

    def __call__(self) -> Iterator[list[Item]]:
        for block in self.blocks():
            yield [item for item in block if self.keep(item)]


@dataclass(frozen=True)
class _First:
    blocks: Blocks
    limit: int

    def __call__(self) -> Iterator[list[Item]]:
        left = self.limit
        for block in self.blocks():
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return
