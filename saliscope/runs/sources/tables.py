"""Hugging Face datasets on disk: Parquet files, or Arrow files of save_to_disk, with a column of images."""

from __future__ import annotations

import json
import posixpath

import pyarrow as pa
import pyarrow.parquet as pq

from saliscope.errors import Refused
from saliscope.runs.formats import shorten
from saliscope.runs.items import Item, arrow_table, image_column
from saliscope.runs.sources.lists import LABELS
from saliscope.runs.sources.location import Location, is_image, suffix

SUFFIXES = (".parquet", ".arrow")


def is_table(start: bytes) -> bool:
    """Return whether a file starts like a Parquet file, or an Arrow stream or file."""
    return start.startswith((b"PAR1", b"\xff\xff\xff\xff", b"ARROW1"))


def has_images(location: Location, name: str) -> bool:
    """Return whether a table has a column of images."""
    return image_column(read_schema(location, name)) is not None


def with_images(location: Location, names: list[str]) -> list[str]:
    """Return the tables with a column of images.

    In each folder, tables after the first one with images are not checked, because there may be many shards.

    Errors   Refused for a damaged table, unless there are image files
    """
    tables, folders, image_files = list[str](), set[str](), any(map(is_image, names))
    for name in names:
        if suffix(name) in SUFFIXES and not posixpath.basename(name).startswith("cache-"):
            folder = posixpath.dirname(name)
            try:
                if folder in folders or has_images(location, name):
                    folders.add(folder)
                    tables.append(name)
            except Refused:
                if not image_files:
                    raise
    return tables


def list_images(location: Location, name: str, first: str) -> list[Item]:
    """Return the rows of a table as items with the path FILE#ROW.

    Args     first: the first table of the set, whose columns and class names all tables need
    Errors   Refused for different columns or class names, and for damaged tables
    """
    schema = read_schema(location, name)
    if name != first:
        _check_same(location, (name, schema), (first, read_schema(location, first)))
    url, text = location.url(name), location.to_text(name)
    return [Item(f"{text}#{row:08d}", label, url, row=row) for row, label in enumerate(_labels(location, name, schema))]


def _check_same(location: Location, one: tuple[str, pa.Schema], first: tuple[str, pa.Schema]) -> None:
    found, expected = ((name, image_column(schema), _label_column(schema)[0]) for name, schema in (one, first))
    if found[1:] != expected[1:]:
        raise Refused(
            f"The tables in {location.source} have different columns: {_describe(found)}; {_describe(expected)}. "
            "Pass tables with the same columns, or one of them."
        )
    own, declared = (_label_column(schema)[1] for _, schema in (one, first))
    if own and declared and own != declared:
        raise Refused(
            f"The tables in {location.source} have different classes: {one[0]} has {shorten(own, 3)}, "
            f"others have {shorten(declared, 3)}. Pass one of the tables."
        )


def _describe(columns: tuple[str, str | None, str | None]) -> str:
    name, images, labels = columns
    return f"{name} has images in {images or 'no column'} and labels in {labels or 'no column'}"


def _labels(location: Location, name: str, schema: pa.Schema) -> list[str | None]:
    """Return the label of each row."""
    column, declared = _label_column(schema)
    if suffix(name) == ".arrow":
        table = arrow_table(location.url(name))
    else:
        with location.open(name) as file:
            table = pq.read_table(file, columns=[column] if column else [])
    if column is None:
        return [None] * len(table)
    return [_to_label(value, declared) for value in table[column].to_pylist()]


def _label_column(schema: pa.Schema) -> tuple[str | None, list[str] | None]:
    """Return the column of labels, by name or because it is the only ClassLabel column, and its class names."""
    try:
        features = dict(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        features = {}
    declared = {
        name: [str(label) for label in feature["names"]]
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }
    known = {name.lower(): name for name in schema.names}
    column_name = next((known[name] for name in (*LABELS, "labels", "fine_label") if name in known), None)
    column = column_name or next(iter(declared), None)
    return column, declared.get(column) if column else None


def _to_label(value: object, classes: list[str] | None) -> str | None:
    """Return a label as text; -1 is a missing label in Hugging Face datasets."""
    if value is None or (classes is not None and value == -1):
        return None
    if classes is not None and isinstance(value, int) and 0 <= value < len(classes):
        return classes[value]
    return str(value)


def read_schema(location: Location, name: str) -> pa.Schema:
    """Return the columns of a table.

    Errors   Refused for a damaged table
    """
    try:
        if suffix(name) == ".arrow":
            return arrow_table(location.url(name)).schema
        with location.open(name) as file:
            return pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise Refused(f"{location.url(name)} is damaged or not a table: {error}. Copy it again.") from None
