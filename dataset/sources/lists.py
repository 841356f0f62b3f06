"""Lists of pictures: CSV, text with a path a line, JSON lines, Parquet with the columns path and label."""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
from collections.abc import Iterable, Sequence

from dataset.errors import Refused
from dataset.items import Item, is_local
from dataset.sources.place import Place, is_picture, suffix

SUFFIXES = {".csv", ".tsv", ".txt", ".jsonl", ".parquet"}
PATHS = ("path", "file_name", "filename", "file", "filepath", "file_path", "image", "image_path")
LABELS = ("label", "class", "class_name", "target")
_NEEDED = "A list needs a column path, and may have a column label."


def is_text(start: bytes) -> bool:
    """Whether the first bytes of a file are text."""
    try:
        text = start.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(start) - 4 or not error.start:  # not merely a letter cut in two
            return False
        text = start[: error.start].decode("utf-8-sig")
    return all(letter.isprintable() or letter in "\t\r\n" for letter in text)


def text(place: Place, name: str) -> list[Item]:
    """The pictures of a CSV or TSV with a header, of JSON lines, or of a file with a path, or path and label, a line.

    Errors   Refused for a header without path, and for text that names no pictures
    """
    with place.open(name) as file:
        data = file.read()
    try:
        decoded = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"{place.source} is no UTF-8 text (byte {error.start}). Save the list as CSV in UTF-8.") from None
    if suffix(name) == ".jsonl":
        return _json_lines(place, decoded)
    whole = [line.strip() for line in decoded.split("\n") if line.strip()]
    if suffix(name) == ".txt" and whole and all(map(is_picture, whole)):  # a path may hold a comma
        return _items(place, [(line, None) for line in whole])
    try:
        lines = [row for row in csv.reader(io.StringIO(decoded), delimiter=_delimiter(name, decoded)) if any(row)]
    except csv.Error as error:
        raise Refused(f"{place.source} cannot be read as CSV: {error}. {_NEEDED}") from None
    if not lines:
        raise Refused(f"{place.source} is an empty list. {_NEEDED}")
    header = [cell.strip().lower() for cell in lines[0]]
    path_at = next((header.index(each) for each in PATHS if each in header), None)
    if path_at is not None:
        label_at = next((i for i in map(header.index, (x for x in LABELS if x in header)) if i != path_at), None)
        lines = lines[1:]
    elif is_picture(lines[0][0].strip()):
        path_at, label_at = 0, 1 if len(lines[0]) > 1 else None
    else:
        raise Refused(f"{place.source} has no column path; its first line is {_shortened(lines[0])}. {_NEEDED}")
    rows = [(_cell(row, path_at) or "", None if label_at is None else _cell(row, label_at)) for row in lines]
    return _items(place, rows)


def _json_lines(place: Place, text: str) -> list[Item]:
    rows: list[tuple[str, str | None]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = {str(key).lower(): value for key, value in dict(json.loads(line)).items()}
        except (ValueError, TypeError):
            raise Refused(f"{place.source} has no JSON object in line {number}. {_NEEDED}") from None
        path = next((record[each] for each in PATHS if each in record), None)
        if not isinstance(path, str):
            raise Refused(f"{place.source} has no path in line {number}; it has {_shortened(list(record))}. {_NEEDED}")
        label = next((record[each] for each in LABELS if each in record), None)
        rows.append((path, None if label is None else str(label)))
    return _items(place, rows)


def parquet(place: Place, name: str) -> list[Item]:
    """The pictures of a Parquet file with a column path and perhaps a column label.

    Errors   Refused for other columns
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with place.open(name) as file:
            columns = pq.read_schema(file).names
            known = {column.lower(): column for column in columns}
            path_at = next((known[each] for each in PATHS if each in known), None)
            label_at = next((known[each] for each in LABELS if each in known), None)
            if path_at is None:
                raise Refused(f"{place.source} has no column path or image; it has {_shortened(columns)}. {_NEEDED}")
            table = pq.read_table(file, columns=[each for each in (path_at, label_at) if each])
    except pa.ArrowException as error:
        raise Refused(f"{place.source} is a damaged Parquet file: {error}. Copy it again.") from None
    if not pa.types.is_string(table[path_at].type) and not pa.types.is_large_string(table[path_at].type):
        raise Refused(f"{place.source} has {table[path_at].type} in column {path_at}, where paths should be text.")
    labels: Iterable[object] = table[label_at].to_pylist() if label_at else [None] * len(table)
    pairs = zip(table[path_at].to_pylist(), labels, strict=True)
    named = [(path or "", None if label != label else label) for path, label in pairs]  # NaN is no label
    return _items(place, [(path, None if label is None else str(label)) for path, label in named])


def _delimiter(name: str, data: str) -> str:
    first = data.partition("\n")[0]
    if suffix(name) == ".tsv" or ("\t" in first and "," not in first):
        return "\t"
    return ";" if ";" in first and "," not in first else ","


def _cell(row: Sequence[str], at: int) -> str | None:
    return (row[at].strip() or None) if at < len(row) else None


def _shortened(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _items(place: Place, rows: list[tuple[str, str | None]]) -> list[Item]:
    """A row's path once; two labels for one path are a mistake of the list."""
    items: dict[str, Item] = {}
    for number, (path, label) in enumerate(rows, 1):
        if not path:
            raise Refused(f"{place.source} has no path in entry {number}. Fill it in or leave the entry out.")
        plain = posixpath.normpath(path) if is_local(path) else path
        former = items.get(plain)
        if former and former.label != label:
            raise Refused(
                f"{place.source} lists {path} with two labels, {former.label} and {label}. Keep one of the entries."
            )
        items[plain] = Item(plain, label, _url(place, plain))
    if not items:
        raise Refused(f"{place.source} lists no pictures: it has a header alone.")
    _require_one(place, list(items.values()))
    return list(items.values())


def _url(place: Place, path: str) -> str:
    if not is_local(path) or os.path.isabs(path):
        return path
    return os.path.normpath(place.path(path)) if place.local else place.url(path)


def _require_one(place: Place, items: list[Item]) -> None:
    """A single missing file is its row's reason; all of them missing is a wrong folder. Addresses are not asked."""
    if not place.local or not all(is_local(item.url) for item in items):
        return
    if not any(os.path.exists(item.url) for item in items):
        raise Refused(
            f"None of the {len(items)} files that {place.source} lists exists; the first would be {items[0].url}. "
            "Relative paths begin at the list's own folder."
        )
