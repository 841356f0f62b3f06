"""The columns of a run that the statistics of a report need, as arrays: about 100 bytes per row, without the maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from saliscope.datasets.run_data import RunData

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

READ = "path label label_index prediction prediction_index probability label_probability correct target".split()
READ += ["target_index", "error", "map_height", "map_width", "findings", "finding_texts"]
UNKNOWN = -1


@dataclass(eq=False)
class Names:
    """A column of names as codes `[n]` into `values`; -1 if there is none."""

    codes: Integers
    values: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def read(self, rows: slice, column: pa.ChunkedArray) -> None:
        """Set the codes of these rows."""
        encoded = column.combine_chunks().dictionary_encode()
        table = np.array([*map(self.code, encoded.dictionary.to_pylist()), UNKNOWN], dtype=np.int32)
        self.codes[rows] = table[np.asarray(encoded.indices.fill_null(UNKNOWN))]  # its last entry is UNKNOWN

    def code(self, name: str) -> int:
        """Return the code of a name, which is new or known."""
        code = self._known.setdefault(name, len(self.values))
        if code == len(self.values):
            self.values.append(name)
        return code

    def __getitem__(self, row: int) -> str | None:
        code = self.codes[row]
        return self.values[code] if code >= 0 else None


@dataclass(eq=False)
class Columns:
    """The columns `[n]` of a run. Missing indices are -1, missing probabilities NaN, and `correct` is -1 if unknown."""

    paths: pa.ChunkedArray
    label: Names
    prediction: Names
    target: Names
    error: Names
    label_index: Integers
    prediction_index: Integers
    target_index: Integers
    probability: Floats
    label_probability: Floats
    correct: NDArray[np.int8]
    has_map: NDArray[np.bool_]
    map_size: tuple[int, int]
    """Height and width of the first map."""
    findings: Counter[str]
    finding_texts: dict[str, str]
    """The number of images with each finding, and its first message."""
    labeled: Mapping[int, int]
    """Predicted images per labeled class, with or without a row; a run may contain only rows of mistakes."""

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, row: int) -> str:
        """Return the path of a row."""
        return str(self.paths[int(row)].as_py())

    @property
    def readable(self) -> NDArray[np.bool_]:
        """Whether each image could be read, `[n]`."""
        return self.error.codes < 0

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether each prediction is wrong, `[n]`."""
        return self.readable & (self.correct == 0)

    @classmethod
    def of(cls, data: RunData) -> Columns:
        """Read the columns of a run. Labels that are classes of the network are replaced by the name of the class.

        Classes that share a name have their index after it. The counts of labels are those in the manifest; if it has
        none, the rows are counted.
        """
        count = len(data)
        names = {each: Names(np.empty(count, np.int32)) for each in ("label", "prediction", "target", "error")}
        arrays = {each: np.empty(count, kind) for each, kind in TYPES.items()}
        paths: list[pa.Array] = [pa.array([], pa.string())]
        findings: Counter[str] = Counter()
        texts: dict[str, str] = {}
        size: tuple[int, int] | None = None
        for start, table in data.batches(READ):
            rows = slice(start, start + len(table))
            paths.append(pa.concat_arrays(table["path"].chunks))  # a copy: the buffers that are read are larger
            for name, column in names.items():
                column.read(rows, table[name])
            for name in INTEGERS:
                arrays[name][rows] = table[name].fill_null(UNKNOWN)
            for name in FLOATS:
                arrays[name][rows] = table[name].cast(pa.float32()).fill_null(np.nan)
            arrays["correct"][rows] = table["correct"].cast(pa.int8()).fill_null(UNKNOWN)
            arrays["has_map"][rows] = table["map_height"].is_valid()
            if size is None and (found := np.flatnonzero(arrays["has_map"][rows])).size:
                first = int(found[0])
                size = int(table["map_height"][first].as_py()), int(table["map_width"][first].as_py())
            _count_findings(table, findings, texts)
        classes = distinct(data.manifest.get("classes") or [])
        for name, column in names.items():
            if name != "error":
                _use_class_names(column, arrays[f"{name}_index"], classes)
        counts = data.manifest.get("labeled")
        if counts is None:
            indices, each = np.unique(arrays["label_index"], return_counts=True)
            counts = {int(k): int(n) for k, n in zip(indices, each, strict=True) if k >= 0}
        labeled = {int(index): int(count) for index, count in counts.items()}
        fields: dict[str, Any] = {**names, **arrays}
        pa.default_memory_pool().release_unused()
        return cls(
            pa.chunked_array(paths), **fields, map_size=size or (1, 1),
            findings=findings, finding_texts=texts, labeled=labeled,
        )  # fmt: skip


INTEGERS = ("label_index", "prediction_index", "target_index")
FLOATS = ("probability", "label_probability")
TYPES: dict[str, Any] = {
    **dict.fromkeys(INTEGERS, np.int32), **dict.fromkeys(FLOATS, np.float32), "correct": np.int8, "has_map": bool,
}  # fmt: skip


def _use_class_names(column: Names, indices: Integers, classes: Sequence[str]) -> None:
    """Replace the names of rows with the index of a class by the distinct name of the class."""
    if not len(classes):
        return
    codes = np.array([column.code(name) for name in classes], dtype=np.int32)
    known = (indices >= 0) & (indices < len(classes))
    column.codes[known] = codes[indices[known]]


def _count_findings(table: pa.Table, counts: Counter[str], texts: dict[str, str]) -> None:
    """Count the images with each finding, once per image, and keep its first message."""
    lists = table["findings"].combine_chunks()
    with_some = table.filter(pc.greater(pc.fill_null(pc.list_value_length(lists), 0), 0))
    for codes, sentences in zip(with_some["findings"].to_pylist(), with_some["finding_texts"].to_pylist(), strict=True):
        counts.update(set(codes))
        for code, text in zip(codes, sentences or [], strict=False):
            texts.setdefault(code, text)


def distinct(classes: Sequence[str]) -> list[str]:
    """Return the names of the classes, with the index if several classes share a name: "crane (517)"."""
    counts = Counter(classes)
    return [name if counts[name] == 1 else f"{name} ({index})" for index, name in enumerate(classes)]
