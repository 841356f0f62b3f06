"""Compare two runs row by row, in batches: predictions, accuracy, and maps where both explain the same class.

Rows are paired by path, or by the content of the images, in any order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from saliscope.errors import Refused
from saliscope.runs.compare.statistics import Distribution, Frame, compare_maps
from saliscope.runs.report.analysis.columns import class_names, distinct
from saliscope.runs.report.analysis.maps import MAPS
from saliscope.runs.results import Progress
from saliscope.runs.rows import BATCH, Booleans, Floats, Integers, RunData
from saliscope.runs.settings import WRONG

PATH, CONTENT = "path", "sha256"
KEYS = (PATH, CONTENT)
SAME, CHANGED, GAINED, LOST, ONLY_A, ONLY_B, UNREADABLE = "same changed gained lost only_a only_b unreadable".split()
"""What happened to an image. `changed`: another prediction that is not known to be better or worse."""
DISAGREE = "maps"
LIGHT = "path sha256 label label_index prediction prediction_index probability correct target target_index".split()
LIGHT += ["error", "map_height", "map_width"]
SHOWN = 24
"""Images shown of each kind."""
TABLE = pa.schema(
    (name, kind)
    for kind, names in (
        (pa.string(), "path path_b change label label_b prediction_a prediction_b"),
        (pa.float32(), "probability_a probability_b"),
        (pa.bool_(), "correct_a correct_b same_content"),
        (pa.float32(), "rank_correlation top_overlap"),
        (pa.string(), "map_note error_a error_b"),
    )
    for name in names.split()
)


CLASS_COUNTS = ("labeled", "correct_a", "correct_b", "gained", "lost", "changed", "maps", "correlation")
"""The counts of each label, and the sum of the rank correlations of its images."""


@dataclass(frozen=True, eq=False)
class Pairing:
    """The rows of two runs: `a` and `b` `[n]` are those of the images in A in order, and -1 in `b` for those without a
    counterpart; `only_b` those of the images that are only in B.

    `repeated` counts images with the key of an earlier one in the same run, which are left out. An image that could not
    be read has no content to compare.
    """

    key: str
    a: Integers
    b: Integers
    only_b: Integers
    repeated: int

    @property
    def paired(self) -> int:
        """The number of images in both runs."""
        return int((self.b >= 0).sum())


def pair(a: RunData, b: RunData, key: str = PATH) -> Pairing:
    """Return the pairs of two runs.

    Errors   Refused for an unknown key, and if a path occurs twice in a run
    """
    if key not in KEYS:
        raise Refused(f"Unknown key {key!r}. Match images by {' or '.join(KEYS)}.")
    own, others = (run.columns([key])[key] for run in (a, b))
    found, first, first_b = _places(own, others), _places(own, own), _places(others, others)
    again = (first < np.arange(len(own))) & (found >= 0)
    again_b = (first_b < np.arange(len(others))) & (first_b >= 0)
    for run, keys, repeats in ((a, own, again), (b, others, again_b)):
        if key == PATH and repeats.any():
            name, path = str(run.folder), keys[int(repeats.argmax())].as_py()
            raise Refused(f"{name!r} is damaged: it has several rows of {path!r}. Run saliscope explain again.")
    alone = ~again_b
    alone[found[found >= 0]] = False
    repeated = int(again.sum() + again_b.sum())
    return Pairing(key, np.flatnonzero(~again), found[~again], np.flatnonzero(alone), repeated)


def _places(keys: pa.ChunkedArray, among: pa.ChunkedArray) -> Integers:
    """Return the first place of each key among others, or -1 for one that is missing or not among them."""
    return np.asarray(pc.index_in(keys, value_set=among, skip_nulls=True).fill_null(-1)).astype(np.int64)


class Comparison:
    """Compares two runs. `frames` are those of their maps, or None to compare only predictions.

    The result is complete when all `rows` were read, which it does not keep.
    """

    def __init__(self, a: RunData, b: RunData, frames: tuple[Frame, Frame] | None, key: str = PATH) -> None:
        """Pair the rows.

        Errors   Refused for a run of only its mistakes, and as `pair`
        """
        for run in (a, b):  # missing rows would count as images that are only in one run
            if run.settings.get("where") == WRONG:
                raise Refused(
                    f"The run in {str(run.folder)!r} has only wrong predictions, so it cannot be compared. Run "
                    "saliscope explain again for all images."
                )
        self.a, self.b, self.frames, self.pairing = a, b, frames, pair(a, b, key)
        classes = [run.manifest.get("classes") or [] for run in (a, b)]
        self.same_classes = bool(classes[0]) and classes[0] == classes[1]
        self.names = [pa.array(distinct(each), pa.string()) for each in classes]
        self._counts: list[pa.Table] = []
        self.classes: pa.Table = None
        """Columns `name` and `CLASS_COUNTS`, a row per label. Images without a label count by their prediction in A."""
        self.compared = self.agree = 0
        """Pairs that both runs could read, and those with equal predictions."""
        self.other_content = self.other_labels = self.other_targets = 0
        self.changes: Counter[str] = Counter()
        self.transitions: Counter[tuple[str, str]] = Counter()
        self.correlation, self.overlap = Distribution(-1, 1), Distribution(0, 1)
        self.map_notes: Counter[str] = Counter()
        self.map_sizes: Counter[tuple[tuple[int, int], tuple[int, int]]] = Counter()
        self.shown: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        """The images with the highest `rank` of each kind, the highest first: their row of the table, and `rows` in the
        runs."""

    def total(self, name: str) -> int:
        """Return the sum of a count over all labels."""
        return pc.sum(self.classes[name]).as_py() or 0

    def rows(self, progress: Progress | None = None) -> Iterator[pa.Table]:
        """Yield the rows of the table of the comparison: the images of A in order, then those that are only in B.

        The result is complete at the end.

        Errors   Refused if the runs have no image in common
        """
        pairing = self.pairing
        if not pairing.paired:
            hint = "" if pairing.key != PATH else " If their paths differ, match them by sha256."
            raise Refused(
                f"The runs in {str(self.a.folder)!r} and {str(self.b.folder)!r} have no image in common.{hint}"
            )
        whole = np.concatenate([pairing.a, np.full(len(pairing.only_b), -1)])
        others = np.concatenate([pairing.b, pairing.only_b])
        for start in range(0, len(whole), BATCH):
            part = slice(start, start + BATCH)
            yield self._compare(whole[part], others[part])
            if progress is not None:
                progress(min(start + BATCH, len(pairing.a)), len(pairing.a))
        self.classes = _sum_by_name(pa.concat_tables(self._counts))

    def _compare(self, rows_a: Integers, rows_b: Integers) -> pa.Table:
        a, b = Rows(self.a, rows_a, self.names[0]), Rows(self.b, rows_b, self.names[1])
        both = (rows_a >= 0) & (rows_b >= 0)
        readable = both & ~a.failed & ~b.failed
        agree = readable & self._same(a, b, "prediction")
        same_content = _true(pc.equal(pc.fill_null(a["sha256"], ""), pc.fill_null(b["sha256"], "")))
        same_label = _true(pc.equal(a["label"], b["label"])) | self._same(a, b, "label")
        labeled = readable & a.labeled & b.labeled
        gained, lost = labeled & same_label & ~a.right & b.right, labeled & same_label & a.right & ~b.right
        kinds = [rows_b < 0, rows_a < 0, ~readable, gained, lost, ~agree]
        change = np.select(kinds, [ONLY_A, ONLY_B, UNREADABLE, GAINED, LOST, CHANGED], SAME)
        correlations, overlaps, notes = self._maps(a, b, agree)
        self.changes.update(change.tolist())
        self.compared += int(readable.sum())
        self.agree += int(agree.sum())
        self.other_labels += int((labeled & ~same_label).sum())
        self.other_content += int((readable & ~same_content).sum())
        moved = pa.array(readable & ~agree)
        predictions = (each.names["prediction"].filter(moved).to_pylist() for each in (a, b))
        self.transitions.update(zip(*predictions, strict=True))
        labeled &= same_label
        counts = labeled, labeled & a.right, labeled & b.right, gained, lost, readable & ~agree
        values = (*counts, np.isfinite(correlations), np.nan_to_num(correlations))
        names = pc.binary_join_element_wise("predicted as ", a.names["prediction"], " in A", "")
        names = pc.coalesce(a.names["label"], names)
        found = pa.table([names, *map(pa.array, values)], names=["name", *CLASS_COUNTS])
        self._counts.append(_sum_by_name(found.filter(pa.array(both & np.asarray(names.is_valid())))))
        columns = {"path": a["path"], "path_b": b["path"], "change": change, "label": a["label"], "label_b": b["label"]}
        for letter, side in (("a", a), ("b", b)):
            columns |= {f"{name}_{letter}": side[name] for name in ("probability", "correct", "error")}
            columns[f"prediction_{letter}"] = side.names["prediction"]
        columns |= {"same_content": pa.array(same_content, mask=~both), "map_note": pa.array(notes, mask=~both)}
        columns["rank_correlation"] = pa.array(correlations, from_pandas=True)
        columns["top_overlap"] = pa.array(overlaps, from_pandas=True)
        table = pa.table({name: columns[name] for name in TABLE.names}).cast(TABLE)
        confidence = np.nan_to_num(np.asarray(b["probability"].fill_null(0)))
        for name in (GAINED, LOST, CHANGED):
            self._show(name, np.flatnonzero(change == name), confidence, a, b, table)
        disagreement = -correlations.astype(np.float32)  # without the rounding errors of equal maps
        self._show(DISAGREE, np.flatnonzero(np.isfinite(correlations)), disagreement, a, b, table)
        return table

    def _same(self, a: Rows, b: Rows, name: str) -> Booleans:
        """Return which classes are equal: by index if the runs have the same classes, or else by name."""
        if self.same_classes:
            return _true(pc.equal(a[f"{name}_index"], b[f"{name}_index"]))
        return _true(pc.equal(a.names[name], b.names[name]))

    def _maps(self, a: Rows, b: Rows, agree: Booleans) -> tuple[Floats, Floats, NDArray[np.object_]]:
        """Return the agreement of the maps of images with equal predictions and explained classes."""
        correlations, overlaps = np.full((2, len(agree)), np.nan)
        explained = agree & self._same(a, b, "target")
        notes = np.select([explained, agree], ["", "other class explained"], "other prediction").astype(object)
        self.other_targets += int((agree & ~explained).sum())
        rows = np.flatnonzero(explained)
        if self.frames is None:
            notes[rows] = "not compared"
            return correlations, overlaps, notes
        # At most 2^22 cells at once, so that large maps do not fill the memory.
        groups = np.cumsum((a.cells + b.cells)[rows]) // 2**22
        for chunk in (rows[groups == group] for group in np.unique(groups)):
            maps = [side.run.take(side.rows[chunk], MAPS) for side in (a, b)]
            found = compare_maps(maps[0], maps[1], self.frames)
            correlations[chunk], overlaps[chunk], notes[chunk] = found[:3]
            self.map_sizes.update(found[3])
        self.map_notes.update(note for note in notes[rows].tolist() if note)
        known = np.isfinite(correlations)
        self.correlation.add(correlations[known])
        self.overlap.add(overlaps[known])
        return correlations, overlaps, notes

    def _show(self, name: str, numbers: Integers, ranks: NDArray[Any], a: Rows, b: Rows, table: pa.Table) -> None:
        """Keep the images with the highest rank; of equal ranks, the first is kept."""
        best = numbers[np.argsort(-ranks[numbers], kind="stable")[:SHOWN]]
        found = table.take(best).to_pylist()
        for k, row in zip(best, found, strict=True):
            row |= {"rank": float(ranks[k]), "rows": (int(a.rows[k]), int(b.rows[k]))}
        self.shown[name] = sorted([*self.shown[name], *found], key=lambda row: -row["rank"])[:SHOWN]


class Rows:
    """Some rows of a run, with nulls for those that it does not have (-1). `names` has distinct names of classes."""

    def __init__(self, run: RunData, rows: Integers, classes: pa.Array) -> None:
        known = rows >= 0
        self.run, self.rows = run, rows
        self.table = run.take(rows[known], LIGHT).take(pa.array(np.cumsum(known) - 1, mask=~known))
        self.names = {name: class_names(self.table, name, classes) for name in ("label", "prediction", "target")}
        self.failed = np.asarray(self["error"].is_valid())
        self.labeled, self.right = np.asarray(self["correct"].is_valid()), _true(self["correct"])
        height, width = (np.asarray(self[name].fill_null(0)).astype(np.int64) for name in ("map_height", "map_width"))
        self.cells = height * width

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.table[name]


def _true(values: pa.ChunkedArray) -> Booleans:
    """Return which values are true and not null."""
    return np.asarray(values.fill_null(False))


def _sum_by_name(table: pa.Table) -> pa.Table:
    sums = table.group_by("name").aggregate([(name, "sum") for name in CLASS_COUNTS])
    return sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names])
