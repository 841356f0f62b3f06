"""What a user adds to a report: metadata, which are the other columns of a list, and masks of the images.

By default, the metadata are in the list that the images came from. A mask is one image for all rows, or one per image.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image
from pyarrow import csv, json, parquet

from saliscope.errors import Refused
from saliscope.runs.items import is_local
from saliscope.runs.sources import lists
from saliscope.runs.sources.location import Location, open_location, suffix

MOST = 100
"""Maximum number of columns."""
SPELLINGS = [each for name in lists.PATHS for each in (name, name.capitalize(), name.title(), name.upper())]
TEXTS = csv.ConvertOptions(column_types={name: pa.string() for name in SPELLINGS}, strings_can_be_null=True)
"""Paths are read as text, although their names may be numbers or dates."""


def of_source(source: str, paths: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the metadata in the source of a run; empty if the source is not a list, or is not available anymore."""
    if suffix(source) not in lists.SUFFIXES - {".txt"}:
        return {}
    try:
        return read(source, paths)
    except (Refused, OSError):
        return {}


def read(source: str, paths: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the columns of a CSV, JSON-lines or Parquet list for these paths, null for paths that it does not have.

    Errors   Refused for a file that is not such a list, for a path with several rows, and if no path is in the list
    """
    location = open_location(source)
    if not location.is_file:
        raise Refused(f"{source} is not a list. Use a CSV, JSON-lines or Parquet file with a column path.")
    table = _read_table(location)
    path_at, _ = lists.find_columns(table.column_names)
    if path_at is None:
        raise Refused(
            f"{source} has no column path. Its columns are {', '.join(table.column_names[:8])}. Add the paths."
        )
    given = table[path_at].cast(pa.string()).to_pylist()
    keys = pa.array([posixpath.normpath(each) if each and is_local(each) else each for each in given], pa.string())
    counts = pc.value_counts(keys)
    if twice := counts.filter(pc.greater(counts.field("counts"), 1)).to_pylist():
        raise Refused(f"{source} has {twice[0]['counts']} rows of {twice[0]['values']!r}. Keep one row per image.")
    rows = pc.index_in(paths, value_set=keys).combine_chunks()
    if rows.null_count == len(rows):
        raise Refused(f"{source} has no path of the run, such as {paths[0].as_py()!r}. Use the paths that the run has.")
    others = [name for name in table.column_names if name != path_at][:MOST]
    return {name: table[name].combine_chunks().take(rows) for name in others}


def _read_table(location: Location) -> pa.Table:
    name = location.name
    try:
        with location.open(name) as file:
            if suffix(name) == ".parquet":
                return parquet.read_table(file)
            if suffix(name) == ".jsonl":
                return json.read_json(file)
            if suffix(name) not in lists.SUFFIXES:
                raise Refused(f"{location.source} is not a CSV, JSON-lines or Parquet file.")
            first = location.start(name).decode("utf-8", "replace")
            options = csv.ParseOptions(delimiter=lists.delimiter(name, first), newlines_in_values=True)
            return csv.read_csv(file, parse_options=options, convert_options=TEXTS)
    except pa.ArrowException as error:
        raise Refused(f"Cannot read {location.source}: {str(error).splitlines()[0]}") from None


def find_masks(path: Path, paths: pa.ChunkedArray) -> Image.Image | Callable[[str], Image.Image | None]:
    """Return the mask, or a function that returns the mask of a path, or None if there is none.

    Errors   Refused for a path that does not exist, for a file that is not an image, and for a folder without a mask
             of any of the paths
    """
    if not path.exists():
        raise Refused(f"File not found: {str(path)!r}. Pass a mask, or a folder of masks.")
    if not path.is_dir():
        return _read(path)
    files = {file.relative_to(path).with_suffix("").as_posix(): file for file in path.rglob("*") if file.is_file()}

    def find_mask(row: str) -> Image.Image | None:
        name = PurePosixPath(row).with_suffix("")
        file = files.get(name.as_posix()) or files.get(name.name)
        mask = None if file is None else _read(file)
        return mask if mask is not None and mask.getextrema() != (0, 0) else None  # a black mask is empty

    if not any(find_mask(row) is not None for row in paths.to_pylist()):
        raise Refused(
            f"None of the images of the run has a mask in {str(path)!r}. A mask needs the name of its image, with any "
            "suffix."
        )
    return find_mask


def _read(path: Path) -> Image.Image:
    try:
        with Image.open(path) as file:
            return file.convert("L")
    except (OSError, ValueError):
        raise Refused(
            f"Cannot read the mask {str(path)!r}: it is not an image. Use an image that is white inside."
        ) from None
