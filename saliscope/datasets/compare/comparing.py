"""Compare two runs row by row, in batches: predictions, accuracy, and maps where both explain the same class."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from saliscope.datasets.compare.agreement import Frame, compare_maps
from saliscope.datasets.compare.pairing import PATH, Pairing
from saliscope.datasets.compare.statistics import Distribution
from saliscope.datasets.report.analysis.columns import distinct
from saliscope.datasets.settings import WRONG
from saliscope.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from saliscope.datasets.run_data import RunData

LIGHT = (
    "path sha256 label label_index prediction prediction_index probability correct target target_index error".split()
)
LIGHT += ["map_height", "map_width"]
MAPS = ["map", "map_scale", "map_height", "map_width"]
SHOWN = 24
"""Images shown of each kind."""
SAME, CHANGED, GAINED, LOST, ONLY_A, ONLY_B, UNREADABLE = "same changed gained lost only_a only_b unreadable".split()
"""What happened to an image. `changed`: another prediction that is not known to be better or worse."""
TABLE = pa.schema(
    [
        ("path", pa.string()),
        ("path_b", pa.string()),
        ("change", pa.string()),
        ("label", pa.string()),
        ("label_b", pa.string()),
        ("prediction_a", pa.string()),
        ("prediction_b", pa.string()),
        ("probability_a", pa.float32()),
        ("probability_b", pa.float32()),
        ("correct_a", pa.bool_()),
        ("correct_b", pa.bool_()),
        ("same_content", pa.bool_()),
        ("rank_correlation", pa.float32()),
        ("top_overlap", pa.float32()),
        ("map_note", pa.string()),
        ("error_a", pa.string()),
        ("error_b", pa.string()),
    ]
)


@dataclass
class ByClass:
    """The images of a label: counts for the accuracies, and the sum of their rank correlations."""

    labeled: int = 0
    correct_a: int = 0
    correct_b: int = 0
    gained: int = 0
    lost: int = 0
    changed: int = 0
    maps: int = 0
    correlation: float = 0.0


@dataclass(frozen=True, order=True)
class Shown:
    """An image to show: the row in each run, and what is known about it. A higher `rank` is more important."""

    rank: float
    number: int
    rows: tuple[int, int] = field(compare=False)
    row: Mapping[str, Any] = field(compare=False)


class Best:
    """The few images with the highest rank."""

    def __init__(self, most: int = SHOWN) -> None:
        self.most, self._heap, self._counter = most, list[Shown](), itertools.count()

    def offer(self, rank: float, rows: tuple[int, int], row: Callable[[], Mapping[str, Any]]) -> None:
        """Keep an image if it belongs to the best; of equal ranks, the first is kept."""
        if len(self._heap) < self.most:
            heapq.heappush(self._heap, Shown(rank, -next(self._counter), rows, row()))
        elif rank > self._heap[0].rank:
            heapq.heapreplace(self._heap, Shown(rank, -next(self._counter), rows, row()))

    def sorted(self) -> list[Shown]:
        """Return the images, the best first."""
        return sorted(self._heap, reverse=True)


@dataclass
class Comparison:
    """The result of a comparison, without the rows."""

    pairing: Pairing
    changes: Counter[str] = field(default_factory=Counter)
    classes: dict[str, ByClass] = field(default_factory=dict)
    transitions: Counter[tuple[str, str]] = field(default_factory=Counter)
    compared: int = 0
    """Pairs that both runs could read."""
    agree: int = 0
    other_content: int = 0
    other_labels: int = 0
    other_targets: int = 0
    correlation: Distribution = field(default_factory=lambda: Distribution(-1, 1))
    overlap: Distribution = field(default_factory=lambda: Distribution(0, 1))
    map_notes: Counter[str] = field(default_factory=Counter)
    map_sizes: Counter[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=Counter)
    shown: dict[str, Best] = field(default_factory=lambda: {name: Best() for name in (GAINED, LOST, CHANGED, "maps")})

    def total(self, name: str) -> int:
        """Return the sum of a count over all labels."""
        return sum(getattr(each, name) for each in self.classes.values())


class Comparer:
    """Compares two runs. `frames` are those of their maps, or None to compare only predictions."""

    def __init__(self, a: RunData, b: RunData, frames: tuple[Frame, Frame] | None, key: str = PATH) -> None:
        refuse_partial(a, b)
        self.a, self.b, self.frames = a, b, frames
        names = [run.manifest.get("classes") or [] for run in (a, b)]
        self.same_classes = names[0] == names[1]
        self.names = [np.array(distinct(each), dtype=object) for each in names]
        self.result = Comparison(Pairing(a, b, key))

    def rows(self, progress: Callable[[int, int], object] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of the table of the comparison; the result is complete at the end.

        Errors   Refused if the runs have no image in common
        """
        done = 0
        for rows_a, rows_b, a, b in self.result.pairing(LIGHT):
            if len(b):
                yield self._pairs(rows_a, rows_b, Columns(a, self.names[0]), Columns(b, self.names[1]))
            else:
                yield self._alone(Columns(a, self.names[0]), "a", ONLY_A)
            done += len(a)
            if progress is not None:
                progress(done, len(self.a))
        if not self.result.pairing.paired:
            hint = "" if self.result.pairing.key != PATH else " If their paths differ, use --match sha256."
            raise Refused(
                f"The runs in {str(self.a.folder)!r} and {str(self.b.folder)!r} have no image in common.{hint}"
            )
        only_b = self.result.pairing.only_b
        for start in range(0, len(only_b), 8192):
            table = self.b.take(only_b[start : start + 8192], LIGHT)
            yield self._alone(Columns(table, self.names[1]), "b", ONLY_B)

    def _alone(self, one: Columns, run: str, change: str) -> pa.Table:
        self.result.changes[change] += len(one)
        label = "label" if run == "a" else "label_b"
        return _table(
            len(one),
            {"path" if run == "a" else "path_b": one.path, "change": [change] * len(one), label: one.label}
            | {f"{name}_{run}": getattr(one, name) for name in ("prediction", "probability", "correct", "error")},
        )

    def _pairs(self, rows_a: NDArray[np.int64], rows_b: NDArray[np.int64], a: Columns, b: Columns) -> pa.Table:
        result = self.result
        readable = ~a.failed & ~b.failed
        agree = readable & self._same(a.predicted, b.predicted, a.prediction, b.prediction)
        same_label = self._same_labels(a, b)
        both_labeled = readable & a.labeled & b.labeled & same_label
        result.other_labels += int((readable & a.labeled & b.labeled & ~same_label).sum())
        same_content = a.sha256 == b.sha256
        result.other_content += int((readable & ~same_content).sum())
        change = np.full(len(a), SAME, dtype=object)
        change[readable & ~agree] = CHANGED
        change[both_labeled & ~a.right & b.right] = GAINED
        change[both_labeled & a.right & ~b.right] = LOST
        change[~readable] = UNREADABLE
        correlations, overlaps, notes = self._maps(rows_a, rows_b, a, b, agree)
        result.changes.update(change.tolist())
        result.compared += int(readable.sum())
        result.agree += int(agree.sum())
        moved = np.flatnonzero(readable & ~agree)
        result.transitions.update(zip(a.prediction[moved].tolist(), b.prediction[moved].tolist(), strict=True))
        self._count(a, b, both_labeled, readable & ~agree, correlations)
        values = {
            "path": a.path, "path_b": b.path, "change": change.tolist(), "label": a.label, "label_b": b.label,
            **{f"{name}_a": getattr(a, name) for name in ("prediction", "probability", "correct", "error")},
            **{f"{name}_b": getattr(b, name) for name in ("prediction", "probability", "correct", "error")},
            "same_content": same_content, "rank_correlation": correlations, "top_overlap": overlaps, "map_note": notes,
        }  # fmt: skip
        table = _table(len(a), values)
        self._show(rows_a, rows_b, change, b.confidence, correlations, table)
        return table

    def _same(self, a: NDArray[Any], b: NDArray[Any], name_a: NDArray[Any], name_b: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which classes are equal: by index if the runs have the same classes, or else by name."""
        return np.asarray((a == b) & (a >= 0) if self.same_classes and len(self.names[0]) else name_a == name_b)

    def _same_labels(self, a: Columns, b: Columns) -> NDArray[np.bool_]:
        return np.asarray((a.label == b.label) | self._same(a.label_index, b.label_index, a.label_name, b.label_name))

    def _maps(
        self, rows_a: NDArray[np.int64], rows_b: NDArray[np.int64], a: Columns, b: Columns, agree: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.object_]]:
        """Return the agreement of the maps of images with equal predictions and explained classes."""
        correlations, overlaps = np.full(len(a), np.nan), np.full(len(a), np.nan)
        notes = np.where(agree, "", "other prediction").astype(object)
        same_target = self._same(a.explained, b.explained, a.target, b.target)
        notes[agree & ~same_target] = "other class explained"
        self.result.other_targets += int((agree & ~same_target).sum())
        rows = np.flatnonzero(agree & same_target)
        if self.frames is None:
            notes[rows] = "not compared"
            return correlations, overlaps, notes
        for chunk in self._chunks(a, b, rows):
            maps = [run.take(own[chunk], MAPS) for run, own in ((self.a, rows_a), (self.b, rows_b))]
            found = compare_maps(maps[0], maps[1], self.frames)
            correlations[chunk], overlaps[chunk], notes[chunk] = found[:3]
            self.result.map_sizes.update(found[3])
        self.result.map_notes.update(note for note in notes[rows].tolist() if note)
        known = np.isfinite(correlations)
        self.result.correlation.add(correlations[known])
        self.result.overlap.add(overlaps[known])
        return correlations, overlaps, notes

    def _chunks(self, a: Columns, b: Columns, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield the rows in groups whose maps have at most 2^22 cells, so that large maps do not fill the memory."""
        cells = np.cumsum((a.cells + b.cells)[rows])
        groups = cells // 2**22
        for start in np.unique(groups):
            yield rows[groups == start]

    def _count(
        self,
        a: Columns,
        b: Columns,
        both: NDArray[np.bool_],
        changed: NDArray[np.bool_],
        correlations: NDArray[np.float64],
    ) -> None:
        """Add the images to the counts of their labels;"""
        for row in range(len(a)):
            name = a.label_name[row]
            if name is None and a.prediction[row] is None:
                continue
            name = f"predicted as {a.prediction[row]} in A" if name is None else str(name)
            entry = self.result.classes.setdefault(name, ByClass())
            entry.changed += bool(changed[row])
            if both[row]:
                right = bool(a.right[row]), bool(b.right[row])
                entry.labeled += 1
                entry.correct_a += right[0]
                entry.correct_b += right[1]
                entry.gained += right == (False, True)
                entry.lost += right == (True, False)
            if np.isfinite(correlations[row]):
                entry.maps += 1
                entry.correlation += float(correlations[row])

    def _show(
        self,
        rows_a: NDArray[np.int64],
        rows_b: NDArray[np.int64],
        change: NDArray[np.object_],
        confidence: NDArray[np.float64],
        correlations: NDArray[np.float64],
        table: pa.Table,
    ) -> None:
        for name in (GAINED, LOST, CHANGED):
            self._offer(name, np.flatnonzero(change == name), confidence, rows_a, rows_b, table)
        self._offer("maps", np.flatnonzero(np.isfinite(correlations)), -correlations, rows_a, rows_b, table)

    def _offer(
        self,
        name: str,
        numbers: Iterable[Any],
        ranks: NDArray[np.float64],
        rows_a: NDArray[np.int64],
        rows_b: NDArray[np.int64],
        table: pa.Table,
    ) -> None:
        numbers = np.asarray(numbers)
        best = numbers[np.argsort(-ranks[numbers], kind="stable")[:SHOWN]]
        for k in best:
            number = int(k)
            self.result.shown[name].offer(
                float(ranks[number]),
                (int(rows_a[number]), int(rows_b[number])),
                lambda number=number: table.slice(number, 1).to_pylist()[0],  # type: ignore[misc]
            )


class Columns:
    """The columns of some rows as arrays `[n]`; a missing index is -1, and names of classes are distinct."""

    def __init__(self, table: pa.Table, names: NDArray[np.object_]) -> None:
        self._table = table
        self.path, self.sha256, self.label, self.error = (
            self._objects(name) for name in ("path", "sha256", "label", "error")
        )
        self.failed = np.array([each is not None for each in self.error], dtype=bool)
        self.predicted, self.explained, self.label_index = (
            self._index(name) for name in ("prediction_index", "target_index", "label_index")
        )
        self.prediction = _named(self._objects("prediction"), self.predicted, names)
        self.target = _named(self._objects("target"), self.explained, names)
        self.label_name = _named(self.label, self.label_index, names)
        self.probability, self.correct = self._objects("probability"), self._objects("correct")
        self.confidence = np.array([0.0 if each is None else np.nan_to_num(each) for each in self.probability])
        self.labeled = np.array([each is not None for each in self.correct], dtype=bool)
        self.right = np.array([bool(each) for each in self.correct], dtype=bool)
        sizes = (self._index(name) for name in ("map_height", "map_width"))
        height, width = (np.maximum(each, 0) for each in sizes)
        self.cells = height * width

    def __len__(self) -> int:
        return len(self._table)

    def _objects(self, name: str) -> NDArray[np.object_]:
        values = np.empty(len(self._table), dtype=object)
        values[:] = self._table[name].to_pylist()
        return values

    def _index(self, name: str) -> NDArray[np.int64]:
        return np.array([-1 if each is None else each for each in self._table[name].to_pylist()], dtype=np.int64)


def _named(texts: NDArray[np.object_], indices: NDArray[np.int64], names: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return the distinct names of classes, or the texts of the table for other labels and sentences."""
    known = (indices >= 0) & (indices < len(names))
    result = texts.copy()
    result[known] = names[indices[known]]
    return result


def _table(count: int, values: Mapping[str, Any]) -> pa.Table:
    columns = []
    for column in TABLE:
        value = values.get(column.name)
        columns.append(
            pa.nulls(count, column.type) if value is None else pa.array(value, column.type, from_pandas=True)
        )
    return pa.table(columns, schema=TABLE)


def refuse_partial(a: RunData, b: RunData) -> None:
    """Check that neither run has only its mistakes: missing rows would count as images that are only in one run.

    Errors   Refused
    """
    for run in (a, b):
        if run.manifest["settings"].get("where") == WRONG:
            raise Refused(
                f"The run in {str(run.folder)!r} has only wrong predictions (--where wrong), so it cannot be compared. "
                "Run saliscope explain again without --where."
            )
