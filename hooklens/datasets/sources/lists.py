"""Lists of images: CSV, text with one path per line, JSON lines, or Parquet with the columns path and label."""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
from collections.abc import Iterable, Sequence

from hooklens.datasets.items import Item, is_local
from hooklens.datasets.sources.location import Location, is_image, suffix
from hooklens.errors import Refused

SUFFIXES = {".csv", ".tsv", ".txt", ".jsonl", ".parquet"}
PATHS = ("path", "file_name", "filename", "file", "filepath", "file_path", "image", "image_path")
LABELS = ("label", "class", "class_name", "target")
_NEEDED = "A list needs a column path and may have a column label."


def is_text(start: bytes) -> bool:
    """Return whether the first bytes of a file are text."""
    try:
        text = start.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(start) - 4 or not error.start:  # not only a truncated last character
            return False
        text = start[: error.start].decode("utf-8-sig")
    return all(letter.isprintable() or letter in "\t\r\n" for letter in text)


def text(location: Location, name: str) -> list[Item]:
    """Return the images in a CSV or TSV with a header, in JSON lines, or in a file with a path (and label) per line.

    Errors   Refused for a header without a path column, and for text without image names
    """
    with location.open(name) as file:
        data = file.read()
    try:
        decoded = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(
            f"{location.source} is not UTF-8 text (byte {error.start}). Save the list as CSV in UTF-8."
        ) from None
    if suffix(name) == ".jsonl":
        return _json_lines(location, decoded)
    whole = [line.strip() for line in decoded.split("\n") if line.strip()]
    if suffix(name) == ".txt" and whole and all(map(is_image, whole)):  # a path may contain a comma
        return _items(location, [(line, None) for line in whole])
    try:
        lines = [row for row in csv.reader(io.StringIO(decoded), delimiter=delimiter(name, decoded)) if any(row)]
    except csv.Error as error:
        raise Refused(f"Cannot read {location.source} as CSV: {error}. {_NEEDED}") from None
    if not lines:
        raise Refused(f"{location.source} is an empty list. {_NEEDED}")
    header = [cell.strip().lower() for cell in lines[0]]
    path_at = next((header.index(name) for name in PATHS if name in header), None)
    if path_at is not None:
        label_at = next((i for i in map(header.index, (x for x in LABELS if x in header)) if i != path_at), None)
        lines = lines[1:]
    elif is_image(lines[0][0].strip()):
        path_at, label_at = 0, 1 if len(lines[0]) > 1 else None
    else:
        raise Refused(f"{location.source} has no column path. Its first line is {_shorten(lines[0])}. {_NEEDED}")
    rows = [(_cell(row, path_at) or "", None if label_at is None else _cell(row, label_at)) for row in lines]
    return _items(location, rows)


def _json_lines(location: Location, text: str) -> list[Item]:
    rows: list[tuple[str, str | None]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = {str(key).lower(): value for key, value in dict(json.loads(line)).items()}
        except (ValueError, TypeError):
            raise Refused(f"Line {number} of {location.source} is not a JSON object. {_NEEDED}") from None
        path = next((record[name] for name in PATHS if name in record), None)
        if not isinstance(path, str):
            keys = _shorten(list(record))
            raise Refused(f"Line {number} of {location.source} has no path. Its keys are {keys}. {_NEEDED}")
        label = next((record[name] for name in LABELS if name in record), None)
        rows.append((path, None if label is None else str(label)))
    return _items(location, rows)


def parquet(location: Location, name: str) -> list[Item]:
    """Return the images in a Parquet file with a column path and optionally a column label.

    Errors   Refused for other columns
    """
    import pyarrow as pa  # slow to import, or an extra
    import pyarrow.parquet as pq  # slow to import, or an extra

    try:
        with location.open(name) as file:
            columns = pq.read_schema(file).names
            known = {column.lower(): column for column in columns}
            path_at = next((known[name] for name in PATHS if name in known), None)
            label_at = next((known[name] for name in LABELS if name in known), None)
            if path_at is None:
                raise Refused(
                    f"{location.source} has no column path or image. Its columns are {_shorten(columns)}. {_NEEDED}"
                )
            table = pq.read_table(file, columns=[name for name in (path_at, label_at) if name])
    except pa.ArrowException as error:
        raise Refused(f"{location.source} is a damaged Parquet file: {error}. Copy it again.") from None
    if not pa.types.is_string(table[path_at].type) and not pa.types.is_large_string(table[path_at].type):
        raise Refused(f"Column {path_at} of {location.source} contains {table[path_at].type}. Use strings for paths.")
    labels: Iterable[object] = table[label_at].to_pylist() if label_at else [None] * len(table)
    pairs = zip(table[path_at].to_pylist(), labels, strict=True)
    rows = [(path or "", None if label != label else label) for path, label in pairs]  # NaN is a missing label
    return _items(location, [(path, None if label is None else str(label)) for path, label in rows])


def delimiter(name: str, data: str) -> str:
    """Return the delimiter of a list: tab, semicolon or comma, as its name and its first line show."""
    first = data.partition("\n")[0]
    if suffix(name) == ".tsv" or ("\t" in first and "," not in first):
        return "\t"
    return ";" if ";" in first and "," not in first else ","


def _cell(row: Sequence[str], index: int) -> str | None:
    return (row[index].strip() or None) if index < len(row) else None


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _items(location: Location, rows: list[tuple[str, str | None]]) -> list[Item]:
    """Return one item per path; two different labels for one path are an error."""
    items: dict[str, Item] = {}
    for number, (path, label) in enumerate(rows, 1):
        if not path:
            raise Refused(f"Entry {number} of {location.source} has no path. Add it or remove the entry.")
        plain = posixpath.normpath(path) if is_local(path) else path
        former = items.get(plain)
        if former and former.label != label:
            raise Refused(
                f"{location.source} lists {path} with two labels, {former.label} and {label}. Remove one entry."
            )
        items[plain] = Item(plain, label, _url(location, plain))
    if not items:
        raise Refused(f"{location.source} lists no images, only a header.")
    _require_one(location, list(items.values()))
    return list(items.values())


def _url(location: Location, path: str) -> str:
    if not is_local(path) or os.path.isabs(path):
        return path
    return os.path.normpath(location.path(path)) if location.local else location.url(path)


def _require_one(location: Location, items: list[Item]) -> None:
    """Check that at least one local file exists: if all are missing, the folder is wrong. URLs are not checked."""
    if not location.local or not all(is_local(item.url) for item in items):
        return
    if not any(os.path.exists(item.url) for item in items):
        raise Refused(
            f"None of the {len(items)} files in {location.source} exists. The first is {items[0].url}. Relative paths "
            "are relative to the folder of the list."
        )
