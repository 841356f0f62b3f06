"""Hugging Face data sets on disk: Parquet files, or Arrow files of save_to_disk, with a column of pictures."""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from dataset.errors import Refused
from dataset.items import Item, arrow_table, picture_column
from dataset.sources.lists import LABELS
from dataset.sources.place import Place, is_picture, suffix

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".arrow")


def is_arrow_start(start: bytes) -> bool:
    """Whether a file begins as an Arrow stream or file does."""
    return start.startswith((b"\xff\xff\xff\xff", b"ARROW1"))


def has_pictures(place: Place, name: str) -> bool:
    """Whether a table has a column of pictures."""
    return picture_column(_schema(place, name)) is not None


def columns(place: Place, name: str) -> list[str]:
    """The names of a table's columns."""
    return list(_schema(place, name).names)


def with_pictures(place: Place, names: list[str]) -> list[str]:
    """The tables with a column of pictures; of each folder the first with one tells for those behind it, since shards
    may be many.
    """
    found: list[str] = []
    folders: dict[str, bool] = {}
    for name in names:
        if suffix(name) in SUFFIXES and not posixpath.basename(name).startswith("cache-"):
            folder = posixpath.dirname(name)
            if not folders.get(folder):
                folders[folder] = _may_have_pictures(place, name, beside=any(map(is_picture, names)))
            if folders[folder]:
                found.append(name)
    return found


def _may_have_pictures(place: Place, name: str, beside: bool) -> bool:
    """As `has_pictures`; one that cannot be read says nothing of a folder with pictures `beside` it.

    Errors   Refused for a damaged table without any
    """
    try:
        return has_pictures(place, name)
    except Refused:
        if beside:
            return False
        raise


def listed(place: Place, names: list[str]) -> tuple[list[Item], list[str] | None]:
    """The rows of tables as items, path FILE#ROW, and the class names that they declare.

    Errors   Refused for tables of different class names, for damaged ones, and for no rows at all
    """
    items: list[Item] = []
    classes: list[str] | None = None
    for name in names:
        rows, labels, declared = _labels(place, name)
        if declared and classes and declared != classes:
            raise Refused(
                f"{place.source} has tables of different classes: {name} declares {_few(declared)}, "
                f"others {_few(classes)}. Give one of them."
            )
        classes = declared or classes
        url, shown = place.url(name), place.shown(name)
        items += [Item(f"{shown}#{row:08d}", labels[row], url, row=row) for row in range(rows)]
    if not items:
        raise Refused(f"{place.source} is a data set without rows.")
    return items, classes


def _labels(place: Place, name: str) -> tuple[int, list[str | None], list[str] | None]:
    """Number of rows, label of each, and declared class names."""
    import pyarrow.parquet as pq

    schema = _schema(place, name)
    column, declared = _label_column(schema)
    if suffix(name) == ".arrow":
        table = arrow_table(place.url(name))
    else:
        with place.open(name) as file, pq.ParquetFile(file) as parquet:
            rows = parquet.metadata.num_rows
            table = parquet.read(columns=[column]) if column else None
            if table is None:
                return rows, [None] * rows, None
    if column is None:
        return len(table), [None] * len(table), None
    return len(table), [_named(value, declared) for value in table[column].to_pylist()], declared


def _label_column(schema: pa.Schema) -> tuple[str | None, list[str] | None]:
    """The column of labels: by name, else the only one declared as ClassLabel; with the class names."""
    features = _features(schema)
    declared = {
        name: [str(each) for each in feature["names"]]
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }
    known = {name.lower(): name for name in schema.names}
    named = next((known[each] for each in (*LABELS, "labels", "fine_label") if each in known), None)
    column = named or next(iter(declared), None)
    return column, declared.get(column) if column else None


def _features(schema: pa.Schema) -> dict[str, Any]:
    try:
        return dict(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def _named(value: object, classes: list[str] | None) -> str | None:
    """A label as text; -1 is Hugging Face's word for none."""
    if value is None or (classes is not None and value == -1):
        return None
    if classes is not None and isinstance(value, int) and 0 <= value < len(classes):
        return classes[value]
    return str(value)


def _schema(place: Place, name: str) -> pa.Schema:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if suffix(name) == ".arrow":
            return arrow_table(place.url(name)).schema
        with place.open(name) as file:
            return pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise Refused(f"{place.url(name)} is damaged or no table: {error}. Copy it again.") from None


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
