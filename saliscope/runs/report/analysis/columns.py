"""The columns of a run that the statistics of a report need: about 100 bytes per row, without the maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from saliscope.runs.rows import SCHEMA, Integers, RunData

NAMES = ("label", "prediction", "target")
PROBABILITIES = ("probability", "label_probability")
READ = ["path", "error", "correct", *PROBABILITIES, *NAMES, *(f"{name}_index" for name in NAMES)]
READ += ["map_height", "map_width", "findings", "finding_texts"]
MOST = 56
"""Maximum number of cells per side; finer maps are averaged, to 4 pixels per cell at 224 pixels."""


def evenly(values: NDArray[Any], most: int) -> NDArray[Any]:
    """Return the values `[n]`, or `most` of them, evenly spaced."""
    return values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).round().astype(int)]


def as_array(column: pa.Array | pa.ChunkedArray, missing: float) -> NDArray[Any]:
    """Return the values `[n]`, with `missing` for nulls; without nulls, they are not copied."""
    return np.asarray(column.fill_null(missing) if column.null_count else column)


class Names:
    """A column of names as codes `[n]` into `values`; -1 if there is none."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        encoded = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        self.codes: Integers = as_array(encoded.indices, -1)
        self.values: list[str] = encoded.dictionary.to_pylist()

    def are(self, value: str) -> NDArray[np.bool_]:
        """Return which rows `[n]` have this name."""
        return np.asarray(self.codes == (self.values.index(value) if value in self.values else -2))

    def __getitem__(self, row: int) -> str | None:
        code = self.codes[row]
        return self.values[code] if code >= 0 else None


class Columns:
    """The columns `[n]` of a run. Missing indices are -1, missing probabilities NaN, and `correct` is -1 if unknown.

    Labels that are classes of the network are replaced by the name of the class, and classes that share a name have
    their index after it. `table` has the columns with nulls. Images are grouped by their label, or by the explained
    class in a run without labels.
    """

    def __init__(self, data: RunData) -> None:
        self.table = table = _read(data)
        self.paths: pa.ChunkedArray = table["path"]
        self.label, self.prediction, self.target = (Names(table[name]) for name in NAMES)
        indices = (as_array(table[f"{name}_index"], -1) for name in NAMES)
        self.label_index, self.prediction_index, self.target_index = indices
        self.probability, self.label_probability = (as_array(table[name], np.nan) for name in PROBABILITIES)
        self.correct: NDArray[np.int8] = as_array(table["correct"].cast(pa.int8()), -1)
        self.readable = np.asarray(table["error"].is_null())
        self.wrong: NDArray[np.bool_] = self.readable & (self.correct == 0)
        self.groups = self.label if (self.label.codes >= 0).any() else self.target
        self.codes = np.where(self.readable, self.groups.codes, -1)
        """The groups of the images that could be read, or -1."""
        counts = np.unique(self.label_index[self.label_index >= 0], return_counts=True)
        labeled = data.manifest.get("labeled") or dict(zip(*counts, strict=True))
        self.labeled = {int(index): int(count) for index, count in labeled.items()}
        """Predicted images per labeled class, with or without a row; a run may contain only rows of mistakes."""

    def __len__(self) -> int:
        return len(self.table)

    def path(self, row: int) -> str:
        """Return the path of a row."""
        return str(self.paths[int(row)].as_py())

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width of the maps in a report: those of the first map, at most `MOST`."""
        (first,) = self.table.slice(int(self.readable.argmax()), 1).to_pylist()
        return min(MOST, first["map_height"]), min(MOST, first["map_width"])


def _read(data: RunData) -> pa.Table:
    """Return the columns of a run, encoded file by file: texts take much more memory than their codes."""
    classes = pa.array(distinct(data.manifest.get("classes") or []), pa.string())
    parts = [_encode(part, classes) for part in (SCHEMA.empty_table().select(READ), *data.tables(READ))]
    table = pa.concat_tables(parts).unify_dictionaries()
    del parts
    columns = {}
    for name in READ:  # column by column, so that only one of them is in memory twice
        columns[name] = table[name].combine_chunks()
        table = table.drop_columns(name)
    pa.default_memory_pool().release_unused()
    return pa.table(columns)


def _encode(table: pa.Table, classes: pa.Array) -> pa.Table:
    """Return the table with names of classes and errors as dictionaries, and without probabilities that are NaN."""
    columns = {name: table[name] for name in READ}
    columns |= {name: class_names(table, name, classes).dictionary_encode() for name in NAMES}
    columns["error"] = table["error"].dictionary_encode()
    columns |= {name: pc.if_else(pc.is_finite(table[name]), table[name], None) for name in PROBABILITIES}
    return pa.table(columns)


def class_names(table: pa.Table, name: str, classes: pa.Array) -> pa.ChunkedArray:
    """Return a column of labels, predictions or targets, with the names of `classes` for those that have an index."""
    index = table[f"{name}_index"]
    known = classes.take(pc.if_else(pc.less(index, len(classes)), index, None))
    return pc.coalesce(known, table[name])


def distinct(classes: Sequence[str]) -> list[str]:
    """Return the names of the classes, with the index if several classes share a name: "crane (517)"."""
    counts = Counter(classes)
    return [name if counts[name] == 1 else f"{name} ({index})" for index, name in enumerate(classes)]
