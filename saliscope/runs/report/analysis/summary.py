"""The statistics in the report: accuracy with its interval, classes, confusions, findings, and calibration.

Calibration is how often predictions with a certain probability are correct; mistakes of a network with the ImageNet
classes are also counted by their position in the hierarchy of WordNet.

Source   Guo et al. 2017, "On Calibration of Modern Neural Networks", eqs. 3 to 5, arXiv:1706.04599
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.maps import MapPass
from saliscope.runs.rows import Booleans
from saliscope.runs.settings import WNIDS, is_imagenet

TITLES = {
    "non_finite": "Non-finite values",
    "nothing_spatial": "A layer without height and width",
    "saturated": "Saturated probability (vanishing gradient)",
    "no_gradient": "No gradient reaches the layer",
    "nothing_positive": "No positive evidence for the class",
    "flat": "Uniform map",
    "probability_scores": "Scores taken as probabilities because they sum to 1",
    "unclear_scores": "Scores between 0 and 1 taken as logits",
    "unlikely_target": "The explained class has a low probability",
    "unusual_size": "Input size differs from the training size",
    "class_insensitive": "The map hardly depends on the class",
}
"""Titles of findings; other findings are shown with their code."""


@dataclass(frozen=True)
class Rate:
    """The rate `correct` / `count`, with the 95% Wilson interval."""

    correct: int
    count: int

    @property
    def value(self) -> float:
        """The rate, from 0 to 1."""
        return self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The lower and upper bound."""
        from scipy.stats import binomtest  # scipy takes a second to start

        bounds = binomtest(self.correct, self.count).proportion_ci(0.95, method="wilson")
        return float(bounds.low), float(bounds.high)


def accuracy(columns: Columns) -> Rate | None:
    """Return the accuracy over all images whose label is a class of the network, or None if there are none."""
    count = sum(columns.labeled.values())
    return Rate(count - int(columns.wrong.sum()), count) if count else None


def unreadable(columns: Columns) -> list[dict[str, Any]]:
    """Return each `error` with the list `path_list` of the images and its length `path_count`, the largest first."""
    errors = columns.table.select(["error", "path"]).filter(pc.field("error").is_valid())
    found = errors.group_by("error", use_threads=False).aggregate([("path", "list"), ("path", "count")])
    return list(found.sort_by([("path_count", "descending")]).to_pylist())


def class_rows(columns: Columns, maps: MapPass) -> list[dict[str, Any]]:
    """Return the classes sorted by name: the images with this label, or without labels, those explained as this class.

    `rate` is None without labels; `probability` is the mean probability of the prediction; `confused` is the most
    frequent wrong prediction with its count; `shares` are means by region, None without relevance; `mean` is the mean
    map `[h, w]`.
    """
    shares = {f"share_{name}": pa.array(region.shares, from_pandas=True) for name, region in maps.regions.items()}
    own = {name: columns.table[name] for name in ("probability", "label_index")}
    codes = {"code": columns.codes, "predicted": columns.prediction.codes, "wrong": columns.wrong}
    table = pa.table(own | codes | shares)
    pairs = pa.table(codes).filter(pc.field("wrong")).group_by(["code", "predicted"]).aggregate([([], "count_all")])
    confused = {
        each["code"]: (columns.prediction.values[each["predicted"]], each["count_all"])
        for each in pairs.sort_by([("count_all", "ascending"), ("predicted", "descending")]).to_pylist()
    }
    means = [(name, "mean") for name in ("probability", *shares)]
    found = table.group_by("code").aggregate([([], "count_all"), ("label_index", "distinct"), ("wrong", "sum"), *means])
    rows = []
    for each in found.filter(pc.field("code") >= 0).to_pylist():
        count = sum(columns.labeled.get(index, 0) for index in each["label_index_distinct"])
        rows.append(
            {
                "name": columns.groups.values[each["code"]],
                "images": each["count_all"],
                "rate": Rate(count - each["wrong_sum"], count) if count else None,
                "probability": each["probability_mean"],
                "confused": confused.get(each["code"]),
                "shares": {region: each[f"share_{region}_mean"] for region in maps.regions},
                "mean": maps.means[each["code"]],
            }
        )
    return sorted(rows, key=lambda row: row["name"])


def confusions(columns: Columns, most: int) -> tuple[list[dict[str, Any]], int]:
    """Return at most `most` pairs of label and wrong prediction, the most frequent and then the most probable first.

    Each has its `count`, its `share` of the images with the label, and the mean `probability` of the prediction.

    Returns  also the number of all pairs
    """
    wrong = columns.table.select(["label", "prediction", "label_index", "probability"]).filter(pa.array(columns.wrong))
    counts: list[Any] = [([], "count_all"), ("label_index", "first"), ("probability", "mean")]
    pairs = wrong.group_by(["label", "prediction"], use_threads=False).aggregate(counts)
    pairs = pairs.rename_columns(["label", "prediction", "count", "index", "probability"])
    order = [("count", "descending"), ("probability", "descending"), ("label", "ascending")]
    found = pairs.set_column(0, "label", pairs["label"].cast(pa.string())).sort_by(order).slice(0, most).to_pylist()
    for each in found:
        each["share"] = each["count"] / max(columns.labeled.get(each["index"], 0), each["count"])
    return found, len(pairs)


def most_confident(columns: Columns, chosen: Booleans, most: int) -> list[int]:
    """Return some of the chosen rows, the most probable prediction first."""
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(-np.nan_to_num(columns.probability[rows]), kind="stable")][:most].tolist()


def finding_rows(columns: Columns) -> list[dict[str, Any]]:
    """Return the findings with the first message of each, the most frequent first; an image counts once for each."""
    lists, texts = columns.table["findings"].combine_chunks(), columns.table["finding_texts"]
    pairs = pa.table({"row": pc.list_parent_indices(lists), "code": lists.flatten()})
    each = pairs.group_by(["row", "code"], use_threads=False).aggregate([]).group_by("code", use_threads=False)
    counts = each.aggregate([("row", "count"), ("row", "min")]).sort_by([("row_count", "descending")])
    readable, rows = max(1, int(columns.readable.sum())), []
    for found in counts.to_pylist():
        code, first, count = found["code"], found["row_min"], found["row_count"]
        messages = zip(lists[first].as_py(), texts[first].as_py() or [], strict=False)
        example = next((text for name, text in messages if name == code), "")
        title = TITLES.get(code) or code.replace("_", " ").capitalize()
        row = {"code": code, "title": title, "count": count, "share": count / readable, "example": example}
        rows.append(row)
    return rows


BINS = 15
"""Bins of equal width, as in Guo et al. 2017."""
ROUNDING = 1e-6
"""Probabilities are stored as float32, so that 0.2 is slightly above 0.2."""
SIMULATIONS = 1000


@dataclass(frozen=True)
class Bin:
    """The predictions with a probability above `low` and at most `high`: mean probability, and rate of correct ones."""

    low: float
    high: float
    confidence: float
    rate: Rate


@dataclass(frozen=True)
class Calibration:
    """The bins that are not empty, and the expected calibration error (ECE).

    `expected` is the mean ECE of a perfectly calibrated network with these bins, which is above 0 because the number of
    images is finite, and `p` the share of such networks with at least this ECE, by simulation. `smallest_p` is that of
    the largest ECE that these images could have.
    """

    count: int
    bins: list[Bin]
    ece: float
    expected: float
    p: float
    smallest_p: float


def calibrate(probability: NDArray[np.float64], correct: NDArray[np.int8], bins: int = BINS) -> Calibration | None:
    """Return the calibration of predictions, or None if none has a probability and a known class.

    `probability` `[n]` is that of the predicted class, NaN if there is none, and `correct` `[n]` 1, 0 or -1 if unknown.

        ECE = Σ_b n_b / n · |accuracy_b − mean probability_b|

    Example
        >>> round(calibrate(np.array([0.9, 0.9, 0.8]), np.array([1, 0, 1])).ece, 4)
        0.3333
    """
    known = (correct >= 0) & np.isfinite(probability)
    p, right = probability[known].astype(np.float64), correct[known].astype(np.float64)
    if not len(p):
        return None
    numbers = np.clip(np.ceil(p * bins - ROUNDING).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(numbers, minlength=bins)
    sums, hits = (np.bincount(numbers, weights=each, minlength=bins) for each in (p, right))
    used = np.flatnonzero(counts)
    n, confidence = counts[used], sums[used] / counts[used]
    ece = float((n / len(p)) @ np.abs(hits[used] / n - confidence))
    drawn = np.random.default_rng(0).binomial(n, np.clip(confidence, 0, 1), size=(SIMULATIONS, len(n)))
    simulated = np.abs(drawn / n - confidence) @ (n / len(p))
    listed = [
        Bin(int(k) / bins, (int(k) + 1) / bins, float(c), Rate(int(hits[k]), int(counts[k])))
        for k, c in zip(used, confidence, strict=True)
    ]
    largest = float((n / len(p)) @ np.maximum(confidence, 1 - confidence))
    p_values = [float((simulated >= each - ROUNDING).mean()) for each in (ece, largest)]
    return Calibration(len(p), listed, ece, float(simulated.mean()), *p_values)


FILE = Path(__file__).parents[2] / "imagenet_hierarchy.tsv"


@dataclass(frozen=True)
class Ancestor:
    """The mistakes whose label and prediction have this closest common ancestor, of which `classes` are classes."""

    name: str
    classes: int
    count: int
    pairs: int


@dataclass(frozen=True)
class Tree:
    """The nodes of each class, from itself to the root, and the names and numbers of classes of the nodes."""

    above: list[list[str]]
    names: dict[str, str]
    sizes: Counter[str]

    def common(self, a: int, b: int) -> str:
        """Return the closest common ancestor of two classes."""
        others = self.above[b]
        return next(node for node in self.above[a] if node in others)


@functools.cache
def tree() -> Tree:
    """Return the hierarchy of the ImageNet classes."""
    lines = [line.split("\t") for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    parents = {node: parent for node, parent, _ in lines}
    above = []
    for wnid in WNIDS.read_text("ascii").split():
        above.append([wnid])
        while parent := parents.get(above[-1][-1]):
            above[-1].append(parent)
    return Tree(above, {node: name for node, _, name in lines}, Counter(itertools.chain(*above)))


def by_ancestor(columns: Columns, classes: Sequence[str]) -> list[Ancestor] | None:
    """Return the closest common ancestors of labels and wrong predictions, the most frequent first.

    Returns  None for a network without the ImageNet classes
    """
    if not is_imagenet(classes):
        return None
    wrong = columns.wrong & (columns.label_index >= 0)
    indices = np.stack([columns.label_index, columns.prediction_index])[:, wrong]
    pairs, counts = np.unique(indices, axis=1, return_counts=True)
    images: Counter[str] = Counter()
    different: Counter[str] = Counter()
    for label, prediction, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        node = tree().common(label, prediction)
        images[node] += count
        different[node] += 1
    return [
        Ancestor(tree().names[node], tree().sizes[node], count, different[node]) for node, count in images.most_common()
    ]


def median_size(found: Sequence[Ancestor]) -> int:
    """Return the number of classes of the smallest groups that together have half of the mistakes."""
    sizes = np.repeat([each.classes for each in found], [each.count for each in found])
    return int(np.quantile(sizes, 0.5, method="inverted_cdf")) if len(sizes) else 0
