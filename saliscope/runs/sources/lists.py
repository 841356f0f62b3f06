"""Lists of images: CSV, text with one path per line, JSON lines, or Parquet with the columns path and label."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saliscope.errors import Refused
from saliscope.runs.formats import shorten
from saliscope.runs.items import Item, is_local
from saliscope.runs.sources.location import Location, is_image, suffix

SUFFIXES = {".csv", ".tsv", ".txt", ".jsonl", ".parquet"}
PATHS = ("path", "file_name", "filename", "file", "filepath", "file_path", "image", "image_path")
LABELS = ("label", "class", "class_name", "target")
BLOCK = 65_536
"""Entries of a list that are in memory and sorted together."""
_NEEDED = "A list needs a column path and may have a column label."
Entry = tuple[str, str | None]
"""A path and its label."""


def find_columns(names: Iterable[str]) -> tuple[str | None, str | None]:
    """Return the columns of paths and of labels, or None."""
    known = {name.strip().lower(): name for name in reversed(list(names))}
    path, label = (next((known[name] for name in some if name in known), None) for some in (PATHS, LABELS))
    return path, label


def is_text(start: bytes) -> bool:
    """Return whether the first bytes of a file are text."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)  # the last character may be truncated
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\t\r\n" for letter in text)


def blocks(location: Location, name: str) -> Iterator[list[Item]]:
    """Yield the images of a list in blocks of `BLOCK` entries, each sorted by path, without reading the whole list.

    Errors   Refused for a list without paths, for entries that cannot be read, and for a path that is listed twice:
             with two labels, or in two blocks
    """
    shown = location.source if location.is_file else location.url(name)
    read = _parquet if suffix(name) == ".parquet" else _text
    number, repetitions = 0, Repetitions()
    with location.open(name) as file:
        entries = read(file, name, shown)
        while some := list(itertools.islice(entries, BLOCK)):
            items = _items(location, name, shown, some, number)
            if not number:
                _require_one(location, shown, items)
            if (twice := repetitions.add([item.path for item in items])) is not None:
                raise Refused(f"{shown} lists {items[twice].path} more than once. Remove one entry.")
            number += len(some)
            yield sorted(items, key=lambda item: item.path)
    if not number:
        raise Refused(f"{shown} lists no images, only a header.")


class Repetitions:
    """The 64-bit hashes of all paths so far, sorted: eight bytes per path.

    Two of ten million different paths have the same hash with a probability of 3 in a million.
    """

    def __init__(self) -> None:
        self._known = np.zeros(0, np.int64)

    def add(self, paths: Sequence[str]) -> int | None:
        """Add different paths; return the index of one that was added before, or None."""
        new = np.fromiter(map(hash, paths), np.int64, len(paths))
        first, last = (np.searchsorted(self._known, new, side=side) for side in ("left", "right"))
        if (first < last).any():
            return int((first < last).argmax())
        # Two sorted parts are merged in linear time.
        self._known = np.sort(np.concatenate([self._known, np.sort(new)]), kind="stable")
        return None


def _text(file: IO[bytes], name: str, shown: str) -> Iterator[Entry]:
    """Yield the entries of a CSV or TSV with a header, of JSON lines, or of a file with a path (and label) per line."""
    lines = io.TextIOWrapper(file, "utf-8-sig", newline="\n")  # other characters do not end a line in JSON
    try:
        if suffix(name) == ".jsonl":
            yield from _json_lines(shown, lines)
            return
        first = list(itertools.islice(lines, BLOCK))
        plain = [line.strip() for line in first if line.strip()]
        every = itertools.chain(first, lines)
        if suffix(name) == ".txt" and plain and all(map(is_image, plain)):  # a path may contain a comma
            yield from ((line.strip(), None) for line in every if line.strip())
            return
        yield from _rows(shown, csv.reader(every, delimiter=delimiter(name, first[0] if first else "")))
    except UnicodeDecodeError as error:
        at = file.tell() - len(error.object) + error.start
        raise Refused(f"{shown} is not UTF-8 text (byte {at}). Save the list as CSV in UTF-8.") from None


def _rows(shown: str, reader: Any) -> Iterator[Entry]:
    """Yield the entries in the rows of a CSV.

    Errors   Refused for a header without a path column, and for text without image names
    """
    try:
        rows: Iterator[list[str]] = (row for row in reader if any(row))
        header = next(rows, None)
        if header is None:
            raise Refused(f"{shown} is an empty list. {_NEEDED}")
        if find_columns(header)[0] is None and is_image(header[0].strip()):  # without a header
            header, rows = ["path", "label"], itertools.chain([header], rows)
        path, label = find_columns(header)
        if path is None:
            raise Refused(f"{shown} has no column path. Its first line is {shorten(header, 8)}. {_NEEDED}")
        path_at = header.index(path)
        label_at = None if label is None else header.index(label)
        for row in rows:
            yield _cell(row, path_at) or "", None if label_at is None else _cell(row, label_at)
    except csv.Error as error:
        raise Refused(f"Cannot read {shown} as CSV: {error}. {_NEEDED}") from None


def _json_lines(shown: str, lines: Iterable[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = {str(key): value for key, value in dict(json.loads(line)).items()}
        except (ValueError, TypeError):
            raise Refused(f"Line {number} of {shown} is not a JSON object. {_NEEDED}") from None
        path_at, label_at = find_columns(record)
        path, label = record.get(path_at or ""), record.get(label_at or "")
        if not isinstance(path, str):
            keys = shorten(list(record), 8)
            raise Refused(f"Line {number} of {shown} has no path. Its keys are {keys}. {_NEEDED}")
        yield path, None if label is None else str(label)


def _parquet(file: IO[bytes], name: str, shown: str) -> Iterator[Entry]:
    """Yield the entries of a Parquet file with a column path and optionally a column label.

    Errors   Refused for other columns
    """
    try:
        with pq.ParquetFile(file) as parquet:
            schema = parquet.schema_arrow
            path_at, label_at = find_columns(schema.names)
            if path_at is None:
                raise Refused(
                    f"{shown} has no column path or image. Its columns are {shorten(schema.names, 8)}. {_NEEDED}"
                )
            kind = schema.field(path_at).type
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not pa.types.is_string(plain) and not pa.types.is_large_string(plain):
                raise Refused(f"Column {path_at} of {shown} contains {kind}. Use strings for paths.")
            for batch in parquet.iter_batches(8192, columns=[name for name in (path_at, label_at) if name]):
                labels: Iterable[object] = batch[label_at].to_pylist() if label_at else [None] * len(batch)
                for path, label in zip(batch[path_at].to_pylist(), labels, strict=True):
                    yield path or "", None if label is None or label != label else str(label)  # NaN: no label
    except pa.ArrowException as error:
        raise Refused(f"{shown} is a damaged Parquet file: {error}. Copy it again.") from None


def delimiter(name: str, data: str) -> str:
    """Return the delimiter of a list: tab, semicolon or comma, as its name and its first line show."""
    first = data.partition("\n")[0]
    if suffix(name) == ".tsv" or ("\t" in first and "," not in first):
        return "\t"
    return ";" if ";" in first and "," not in first else ","


def _cell(row: Sequence[str], index: int) -> str | None:
    return (row[index].strip() or None) if index < len(row) else None


def _items(location: Location, name: str, shown: str, entries: list[Entry], before: int) -> list[Item]:
    """Return one item per path; two different labels for one path are an error. `before`: entries of other blocks."""
    items: dict[str, Item] = {}
    for number, (path, label) in enumerate(entries, before + 1):
        if not path:
            raise Refused(f"Entry {number} of {shown} has no path. Add it or remove the entry.")
        plain = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if is_local(path) else path
        label = None if label is None else location.to_text(label)
        former = items.get(plain)
        if former and former.label != label:
            raise Refused(f"{shown} lists {path} with two labels, {former.label} and {label}. Remove one entry.")
        items[plain] = Item(plain, label, url_of(location, plain))
    return list(items.values())


def url_of(location: Location, path: str) -> str:
    """Return the file of an entry; relative paths are relative to the folder of the list."""
    if not is_local(path) or os.path.isabs(path):
        return path
    return os.path.normpath(location.path(path)) if location.local else location.url(path)


def _require_one(location: Location, shown: str, items: list[Item]) -> None:
    """Check that at least one local file exists: if all are missing, the folder is wrong. URLs are not checked."""
    if not location.local or not all(is_local(item.url) for item in items):
        return
    if not any(os.path.exists(item.url) for item in items):
        count = f"None of the first {len(items)} files" if len(items) == BLOCK else f"None of the {len(items)} files"
        raise Refused(
            f"{count} in {shown} exists. The first is {items[0].url}. Relative paths are relative to the "
            "folder of the list."
        )
