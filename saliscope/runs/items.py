"""Images of a source: one image and its bytes, and the listing of all of them.

A source is listed lazily: in partitions, and in each of them block by block.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from saliscope.errors import Refused

MOST_BYTES = 2**28
"""Bytes of an image above which nothing more is read; the decoder rejects much smaller files already."""

PAUSES = (0.5, 2.0)
"""Seconds before an image of a store is requested again."""
FINAL = (Refused, FileNotFoundError, IsADirectoryError, PermissionError)
"""Errors that another request does not change."""


@dataclass(frozen=True, slots=True)
class Item:
    """The location of one image. It is small, so that a million of them fit in memory and can be sent to workers."""

    path: str
    """Path relative to the source, unique within the source."""
    label: str | None
    """The class according to the source, or None."""
    url: str
    """The file to open with fsspec: an absolute path or a URL."""
    offset: int = -1
    """First byte of the image in its file, for a member of a tar. -1: the file is the image."""
    size: int = -1
    """Number of bytes from `offset` on."""
    row: int = -1
    """Row of a Parquet or Arrow file with a column of images. -1: the file is not a table."""
    shown: str = ""
    """The name in messages if the location must not be shown, as on a server."""

    @property
    def name(self) -> str:
        """The name in messages."""
        return self.shown or self.url


def read(item: Item) -> bytes:
    """Return the encoded bytes of an image. After an error of a store, the image is requested again, at most twice.

    Errors   Refused, with the message for the row of the image
    """
    with refuse_errors(item.name):
        for pause in () if is_local(item.url) else PAUSES:
            try:
                return _read(item)
            except FINAL:
                raise
            except Exception:  # a store may fail for a moment
                time.sleep(pause)
        return _read(item)


def _read(item: Item) -> bytes:
    if item.row >= 0:
        return _row_bytes(item)
    _refuse_large(item.size)
    fs, path = file_system(item.url)
    if is_local(item.url):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # reading a pipe could block forever
            raise Refused(f"{item.name} is a pipe or a device, not an image.")
        _refuse_large(status.st_size if item.offset < 0 else 0)
    if item.offset < 0:
        return _whole_file(fs, path)
    # By keyword: the second parameter of s3fs is the version.
    data = bytes(fs.cat_file(path, start=item.offset, end=item.offset + item.size))
    if len(data) != item.size:
        raise Refused(f"{item.name} is truncated: {len(data)} of {item.size} bytes of {item.path} were found.")
    return data


def _whole_file(fs: Any, path: str) -> bytes:
    try:
        data = bytes(fs.cat_file(path, start=0, end=MOST_BYTES + 1))
    except FINAL:
        raise
    except Exception:
        if _size(fs, path) != 0:
            raise
        return b""  # S3 refuses requests for a part of an empty file
    if len(data) > MOST_BYTES:
        _refuse_large(max(_size(fs, path), len(data)))
    return data


def _size(fs: Any, path: str) -> int:
    """Return the size of a file in a store, or -1 if it is not known."""
    try:
        return int(fs.size(path))
    except Exception:  # each file system raises its own types of errors
        return -1


def _refuse_large(size: int) -> None:
    if size > MOST_BYTES:
        raise Refused(f"The file has {size / 1e6:,.0f} MB, too much for an image. Save a smaller copy, such as a JPEG.")


def reason_of(error: BaseException) -> str:
    """Return the first line of the message of an error without its period, or its type if it has no message."""
    text = isinstance(error, OSError) and error.strerror  # without the path
    return str(text or error).partition("\n")[0].rstrip(".") or type(error).__name__


@contextlib.contextmanager
def refuse_errors(source: str) -> Iterator[None]:
    """Convert errors of a file system to Refused."""
    try:
        yield
    except Refused:
        raise
    except FileNotFoundError:
        raise Refused(f"File not found: {source}.") from None
    except IsADirectoryError:
        raise Refused(f"{source} is a folder, not an image.") from None
    except PermissionError as error:
        advice = "" if is_local(source) else " Check the credentials and who may read it."
        raise Refused(f"Permission denied: {source}.{advice}") from error
    except Exception as error:  # each file system raises its own types of errors
        raise Refused(f"Cannot read {source}: {reason_of(error)}.") from error


def is_local(url: str) -> bool:
    """Return whether a file is on this machine; other URLs contain `protocol://`.

    The name of a local file may contain the same characters.
    """
    return ("://" not in url and "::" not in url) or url.startswith("/") or os.path.lexists(url)


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it.

    Errors   Refused for an unknown protocol, or if its package is not installed
    """
    if is_local(url):
        return fsspec.filesystem("file"), os.path.abspath(url)
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise Refused(f"Opening {url} needs another package: {error}.") from None
    except ValueError as error:
        raise Refused(f"Cannot open {url}: {error}. Supported: see fsspec.available_protocols().") from None
    except Exception as error:  # for example, a zip file is opened here
        raise Refused(f"Cannot open {url}: {error or type(error).__name__}.") from None
    return fs, str(path)


def list_folder(fs: Any, path: str) -> dict[str, int]:
    """Return the sizes of the files in a folder of a file system by name, with -1 for folders."""
    sizes = {}
    for entry in fs.ls(path, detail=True):
        full = str(entry["name"]).strip("/")
        if full != path.strip("/"):
            sizes[full.rpartition("/")[2]] = -1 if entry["type"] == "directory" else int(entry["size"] or 0)
    return sizes


def _row_bytes(item: Item) -> bytes:
    starts = _group_starts(item.url)
    group = max(i for i, start in enumerate(starts) if start <= item.row)
    value = _read_row_group(item.url, group)[item.row - starts[group]].as_py()
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict) and value.get("bytes"):
        return bytes(value["bytes"])
    name = value.get("path") if isinstance(value, dict) else value
    if not name:
        raise Refused(f"Row {item.row} of {item.url} has no image.")
    if not os.path.isabs(name) and is_local(name):
        name = item.url.rpartition("/")[0] + "/" + name
    return read(Item(item.path, item.label, name))


@functools.lru_cache(maxsize=64)
def _group_starts(url: str) -> list[int]:
    """Return the first row of each row group; Arrow files have one group."""
    if is_arrow(url):
        return [0]
    fs, path = file_system(url)
    with pq.ParquetFile(path, filesystem=fs) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    return [sum(sizes[:i]) for i in range(len(sizes))]


@functools.lru_cache(maxsize=1)
def _read_row_group(url: str, group: int) -> pa.ChunkedArray:
    """Return the images of one row group. The last group is cached, because a source is read in order."""
    if is_arrow(url):
        table = arrow_table(url)
        return table[str(image_column(table.schema))]
    fs, path = file_system(url)
    with pq.ParquetFile(path, filesystem=fs) as file:
        name = str(image_column(file.schema_arrow))
        return file.read_row_group(group, columns=[name])[name]


def is_arrow(url: str) -> bool:
    """Return whether a table is an Arrow file, as written by save_to_disk; otherwise it is a Parquet file."""
    return url.lower().endswith(".arrow")


def arrow_table(url: str) -> pa.Table:
    """Return the table in an Arrow file or stream. Local files are memory-mapped."""
    fs, path = file_system(url)
    source = pa.memory_map(path) if is_local(url) else pa.BufferReader(fs.cat_file(path))
    try:
        return pa.ipc.open_stream(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_file(source).read_all()


IMAGE_COLUMNS = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp")


def image_column(schema: pa.Schema) -> str | None:
    """Return the column of images: structs with bytes as in Hugging Face datasets, or bytes with a known name."""

    def is_image(field: pa.Field) -> bool:
        if pa.types.is_struct(field.type):
            names = {field.type.field(i).name for i in range(field.type.num_fields)}
            return "bytes" in names
        binary = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
        return binary and field.name.lower() in IMAGE_COLUMNS

    names = [field.name for field in schema if is_image(field)]
    return min(names, key=lambda name: name.lower() not in IMAGE_COLUMNS, default=None)


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
