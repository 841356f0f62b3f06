"""One picture of a source, and its bytes."""

from __future__ import annotations

import functools
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataset.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 2**28
"""Read of one local file at most: the decoder refuses pictures long before, by their size."""


@dataclass(frozen=True, slots=True)
class Item:
    """Where one picture lies; small, so that a million of them fit in memory and travel to other machines."""

    path: str
    """As the source names it, relative to the source; unique within it."""
    label: str | None
    """The class as the source says it, or None."""
    url: str
    """The file that fsspec opens: an absolute path or an address."""
    offset: int = -1
    """First byte of the picture in its file: of a member of a tar. -1: the file is the picture."""
    size: int = -1
    """Bytes from `offset` on."""
    row: int = -1
    """Row of a Parquet or Arrow file with a column of pictures. -1: the file is no table."""


def read(item: Item) -> bytes:
    """The bytes of a picture, undecoded.

    Errors   Refused, with the reason that stands in the picture's row
    """
    try:
        return _row_bytes(item) if item.row >= 0 else _file_bytes(item)
    except Refused:
        raise
    except FileNotFoundError:
        raise Refused(f"There is no file {item.url}.") from None
    except IsADirectoryError:
        raise Refused(f"{item.url} is a folder, not a picture.") from None
    except PermissionError:
        raise Refused(f"{item.url} may not be read by this user.") from None
    except Exception as error:  # every file system has errors of its own; the run goes on with the next picture
        raise Refused(f"{item.url} could not be read: {error or type(error).__name__}.") from error


def _file_bytes(item: Item) -> bytes:
    if is_local(item.url):
        data = _local_bytes(item)
    else:
        fs, path = file_system(item.url)
        data = fs.cat_file(path) if item.offset < 0 else fs.cat_file(path, item.offset, item.offset + item.size)
    if 0 <= item.size != len(data):
        raise Refused(f"{item.url} ends inside {item.path}: {len(data)} of its {item.size} bytes are there.")
    return data


def _local_bytes(item: Item) -> bytes:
    mode = os.stat(item.url).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe would block for ever
        raise Refused(f"{item.url} is a pipe or a device, not a picture.")
    with open(item.url, "rb") as file:
        if item.offset < 0:
            return file.read(MOST_BYTES)
        file.seek(item.offset)
        return file.read(item.size)


def is_local(url: str) -> bool:
    """Whether the file lies on this machine: fsspec addresses all others by `protocol://`.

    A name of a file here may hold the same signs.
    """
    return ("://" not in url and "::" not in url) or url.startswith("/") or os.path.lexists(url)


def file_system(url: str) -> tuple[Any, str]:
    """The file system of an address and the path in it.

    Errors   Refused for a protocol that is not known, or whose package is not installed
    """
    import fsspec

    if is_local(url):
        return fsspec.filesystem("file"), os.path.abspath(url)
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise Refused(f"{url} needs another package: {error}.") from None
    except ValueError as error:
        raise Refused(f"{url} cannot be opened: {error}. fsspec.available_protocols() lists what can be.") from None
    except Exception as error:  # a zip that is to be looked into is opened here
        raise Refused(f"{url} cannot be opened: {error or type(error).__name__}.") from None
    return fs, str(path)


def _row_bytes(item: Item) -> bytes:
    start, column = _rows_around(os.getpid(), item.url, *_block(os.getpid(), item.url, item.row))
    value = column[item.row - start].as_py()
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict) and value.get("bytes"):
        return bytes(value["bytes"])
    name = value.get("path") if isinstance(value, dict) else value
    if not name:
        raise Refused(f"Row {item.row} of {item.url} has no picture.")
    if not os.path.isabs(name) and is_local(name):
        name = item.url.rpartition("/")[0] + "/" + name
    return read(Item(item.path, item.label, name))


def _block(_process: int, url: str, row: int) -> tuple[int, int]:
    """First row and number of the row group around a row; Arrow files are one group."""
    starts = _group_starts(_process, url)
    group = max(i for i, start in enumerate(starts) if start <= row)
    return starts[group], group


@functools.lru_cache(maxsize=64)
def _group_starts(_process: int, url: str) -> list[int]:
    if is_arrow(url):
        return [0]
    import pyarrow.parquet as pq

    fs, path = file_system(url)
    with pq.ParquetFile(path, filesystem=fs) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    return [sum(sizes[:i]) for i in range(len(sizes))]


@functools.lru_cache(maxsize=1)
def _rows_around(_process: int, url: str, start: int, group: int) -> tuple[int, pa.ChunkedArray]:
    """Pictures of one row group, kept for the next: a source is read in order. A forked process reads its own."""
    import pyarrow.parquet as pq

    if is_arrow(url):
        table = arrow_table(url)
        return start, table[str(picture_column(table.schema))]
    fs, path = file_system(url)
    with pq.ParquetFile(path, filesystem=fs) as file:
        name = str(picture_column(file.schema_arrow))
        return start, file.read_row_group(group, columns=[name])[name]


def is_arrow(url: str) -> bool:
    """Whether a table is an Arrow file, as save_to_disk writes; otherwise it is Parquet."""
    return url.lower().endswith(".arrow")


def arrow_table(url: str) -> pa.Table:
    """An Arrow file or stream; of a local one only what is read later comes into memory."""
    import pyarrow as pa

    fs, path = file_system(url)
    source = pa.memory_map(path) if is_local(url) else pa.BufferReader(fs.cat_file(path))
    try:
        return pa.ipc.open_stream(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_file(source).read_all()


PICTURE_COLUMNS = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp")


def picture_column(schema: pa.Schema) -> str | None:
    """The column of pictures: structs of bytes and path, as Hugging Face writes them, or bytes by a usual name."""
    import pyarrow as pa

    def is_picture(field: pa.Field) -> bool:
        if pa.types.is_struct(field.type):
            names = {field.type.field(i).name for i in range(field.type.num_fields)}
            return "bytes" in names
        binary = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
        return binary and field.name.lower() in PICTURE_COLUMNS

    names = [field.name for field in schema if is_picture(field)]
    return min(names, key=lambda name: name.lower() not in PICTURE_COLUMNS, default=None)
