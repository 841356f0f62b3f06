"""Clusters of the maps within a class: Spectral Relevance Analysis.

Source   Lapuschkin et al. 2019, doi:10.1038/s41467-019-08987-4

The maps of a class are pooled to a small grid and normalised; a graph joins each to its nearest neighbours; the largest
gap between eigenvalues of its normalised Laplacian tells the number of clusters, and spectral clustering finds them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataset.report.analysis.maps import pool, shares

if TYPE_CHECKING:
    from dataset.report.analysis.maps import Floats, Integers, Maps

GRID = 8
"""Cells of a side at most."""
LEAST = 10
"""Maps of a class below which its clusters are not looked for."""
MOST = 600
"""Maps of a class that are clustered, evenly chosen: eigenvalues of more take minutes."""
NEIGHBOURS = (5, 10)
MOST_CLUSTERS = 6


@dataclass(frozen=True, eq=False)
class Cluster:
    """Maps of one class that are alike: `members` in the order of the maps, most typical first; `mean` `[h, w]`."""

    name: str
    of: int
    """Maps of the class."""
    members: Integers
    mean: Floats


def pooled(maps: Maps) -> Floats:
    """Shares of relevance on the small grid `[n, g, g]`; NaN where there are none."""
    return shares(pool(maps.values.clip(min=0), (min(GRID, maps.size[0]), min(GRID, maps.size[1]))))


def clusters(maps: Maps, classes: list[str]) -> list[Cluster]:
    """The clusters of every class with enough maps, largest first; `classes` `[n]` are what the maps explain."""
    grid = pooled(maps)
    usable = np.flatnonzero(np.isfinite(grid).all((1, 2)))
    names = np.array(classes, dtype=object)
    found = []
    for name in dict.fromkeys(names[usable]):
        mine = usable[names[usable] == name]
        whole = len(mine)
        if whole < LEAST:
            continue
        if whole > MOST:
            mine = mine[np.linspace(0, whole - 1, MOST).round().astype(int)]
        labels = spectral(np.sqrt(grid[mine]).reshape(len(mine), -1))
        parts = [mine[labels == k] for k in range(labels.max() + 1)]
        for part in sorted(parts, key=len, reverse=True):
            mean = grid[part].mean(0)
            typical = np.argsort(((grid[part] - mean) ** 2).sum((1, 2)), kind="stable")
            found.append(Cluster(str(name), len(mine), part[typical], maps.values[part].mean(0)))
    return found


def spectral(points: Floats) -> Integers:
    """The cluster `[n]` of each point `[n, d]`: as many as the eigengap tells, at most `MOST_CLUSTERS`."""
    from scipy.sparse.csgraph import laplacian
    from sklearn.cluster import SpectralClustering
    from sklearn.neighbors import kneighbors_graph

    least, most = NEIGHBOURS
    near = kneighbors_graph(points, max(least, min(most, len(points) // 8)), include_self=False)
    affinity = (0.5 * (near + near.T)).toarray()
    values = np.linalg.eigvalsh(laplacian(affinity, normed=True))
    count = int(np.diff(values[: MOST_CLUSTERS + 1]).argmax()) + 1
    if count == 1:
        return np.zeros(len(points), dtype=np.int64)
    method = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected")  # groups far apart are what is looked for
        return np.asarray(method.fit_predict(affinity), dtype=np.int64)
