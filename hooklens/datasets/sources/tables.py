"""Hugging Face datasets on disk: Parquet files, or Arrow files of save_to_disk, with a column of images."""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from hooklens.datasets.items import Item, arrow_table, image_column
from hooklens.datasets.sources.lists import LABELS
from hooklens.datasets.sources.location import Location, is_image, suffix
from hooklens.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".arrow")


def is_arrow_start(start: bytes) -> bool:
    """Return whether a file starts like an Arrow stream or file."""
    return start.startswith((b"\xff\xff\xff\xff", b"ARROW1"))


def has_images(location: Location, name: str) -> bool:
    """Return whether a table has a column of images."""
    return image_column(_schema(location, name)) is not None


def columns(location: Location, name: str) -> list[str]:
    """Return the names of the columns of a table."""
    return list(_schema(location, name).names)


def with_images(location: Location, names: list[str]) -> list[str]:
    """Return the tables with a column of images.

    In each folder, tables after the first one with images are not checked, because there may be many shards.
    """
    tables: list[str] = []
    folders: dict[str, bool] = {}
    for name in names:
        if suffix(name) in SUFFIXES and not posixpath.basename(name).startswith("cache-"):
            folder = posixpath.dirname(name)
            if not folders.get(folder):
                folders[folder] = _may_have_images(location, name, image_files=any(map(is_image, names)))
            if folders[folder]:
                tables.append(name)
    return tables


def _may_have_images(location: Location, name: str, image_files: bool) -> bool:
    """Return `has_images`, or False for a damaged table if the folder contains `image_files`.

    Errors   Refused for a damaged table in a folder without image files
    """
    try:
        return has_images(location, name)
    except Refused:
        if image_files:
            return False
        raise


def list_images(location: Location, names: list[str]) -> tuple[list[Item], list[str] | None]:
    """Return the rows of tables as items with the path FILE#ROW, and the class names that the tables declare.

    Errors   Refused for tables with different columns or class names, for damaged tables, and for tables without rows
    """
    items: list[Item] = []
    classes: list[str] | None = None
    first: tuple[str, str | None, str | None] | None = None
    for name in names:
        schema = _schema(location, name)
        found = name, image_column(schema), _label_column(schema)[0]
        first = first or found
        if found[1:] != first[1:]:
            raise Refused(
                f"The tables in {location.source} have different columns: {_describe(found)}; {_describe(first)}. "
                "Pass tables with the same columns, or one of them."
            )
        rows, labels, declared = _labels(location, name, schema)
        if declared and classes and declared != classes:
            raise Refused(
                f"The tables in {location.source} have different classes: {name} has {_few(declared)}, "
                f"others have {_few(classes)}. Pass one of the tables."
            )
        classes = declared or classes
        url, text = location.url(name), location.to_text(name)
        items += [Item(f"{text}#{row:08d}", labels[row], url, row=row) for row in range(rows)]
    if not items:
        raise Refused(f"The dataset {location.source} has no rows.")
    return items, classes


def _describe(columns: tuple[str, str | None, str | None]) -> str:
    name, images, labels = columns
    return f"{name} has images in {images or 'no column'} and labels in {labels or 'no column'}"


def _labels(location: Location, name: str, schema: pa.Schema) -> tuple[int, list[str | None], list[str] | None]:
    """Return the number of rows, the label of each row, and the declared class names."""
    import pyarrow.parquet as pq  # slow to import, or an extra

    column, declared = _label_column(schema)
    if suffix(name) == ".arrow":
        table = arrow_table(location.url(name))
    else:
        with location.open(name) as file, pq.ParquetFile(file) as parquet:
            rows = parquet.metadata.num_rows
            table = parquet.read(columns=[column]) if column else None
            if table is None:
                return rows, [None] * rows, None
    if column is None:
        return len(table), [None] * len(table), None
    return len(table), [_to_label(value, declared) for value in table[column].to_pylist()], declared


def _label_column(schema: pa.Schema) -> tuple[str | None, list[str] | None]:
    """Return the column of labels, by name or because it is the only ClassLabel column, and its class names."""
    features = _features(schema)
    declared = {
        name: [str(label) for label in feature["names"]]
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }
    known = {name.lower(): name for name in schema.names}
    column_name = next((known[name] for name in (*LABELS, "labels", "fine_label") if name in known), None)
    column = column_name or next(iter(declared), None)
    return column, declared.get(column) if column else None


def _features(schema: pa.Schema) -> dict[str, Any]:
    try:
        return dict(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def _to_label(value: object, classes: list[str] | None) -> str | None:
    """Return a label as text; -1 is a missing label in Hugging Face datasets."""
    if value is None or (classes is not None and value == -1):
        return None
    if classes is not None and isinstance(value, int) and 0 <= value < len(classes):
        return classes[value]
    return str(value)


def _schema(location: Location, name: str) -> pa.Schema:
    import pyarrow as pa  # slow to import, or an extra
    import pyarrow.parquet as pq  # slow to import, or an extra

    try:
        if suffix(name) == ".arrow":
            return arrow_table(location.url(name)).schema
        with location.open(name) as file:
            return pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise Refused(f"{location.url(name)} is damaged or not a table: {error}. Copy it again.") from None


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
