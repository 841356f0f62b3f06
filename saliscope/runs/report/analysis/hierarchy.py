"""Mistakes of a network with the ImageNet classes by their position in the hierarchy of WordNet."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.settings import WNIDS, is_imagenet

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
    pairs = columns.label_index[wrong].astype(np.int64) * len(classes) + columns.prediction_index[wrong]
    values, counts = np.unique(pairs, return_counts=True)
    images: Counter[str] = Counter()
    different: Counter[str] = Counter()
    for pair, count in zip(values.tolist(), counts.tolist(), strict=True):
        node = tree().common(*divmod(pair, len(classes)))
        images[node] += count
        different[node] += 1
    return [
        Ancestor(tree().names[node], tree().sizes[node], count, different[node]) for node, count in images.most_common()
    ]


def median_size(found: Sequence[Ancestor]) -> int:
    """Return the number of classes of the smallest groups that together have half of the mistakes."""
    total, seen = sum(each.count for each in found), 0
    for each in sorted(found, key=lambda one: one.classes):
        seen += each.count
        if 2 * seen >= total:
            return each.classes
    return 0
