"""What images have in common: clusters of the maps within a class, and features of the images in two dimensions.

Spectral Relevance Analysis: the maps of a class are pooled to a small grid and normalized. A graph connects each map to
its nearest neighbors. The largest gap between eigenvalues of its normalized Laplacian determines the number of
clusters, which are then found by spectral clustering. The pooled features are shown by t-SNE.

Source   Lapuschkin et al. 2019, doi:10.1038/s41467-019-08987-4; van der Maaten and Hinton 2008, "Visualizing Data using
         t-SNE", JMLR 9
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import explainers
from saliscope.runs.report.analysis.maps import LEAST, MOST_OF_CLASS, Maps, pool, shares
from saliscope.runs.rows import Floats, Integers
from saliscope.zoo import Model

GRID = 8
"""Maximum number of cells per side."""
MOST_CLASSES = 200
"""Maximum number of classes whose maps are clustered: those with the most maps."""
NEIGHBORS = (5, 10)
MOST_CLUSTERS = 6


@dataclass(frozen=True, eq=False)
class Cluster:
    """Similar maps of one class: `members` are indices of maps, the most typical first; `mean` is `[h, w]`."""

    name: str
    of: int
    """Number of maps of the class."""
    members: Integers
    mean: Floats


def pool_maps(maps: Maps) -> Floats:
    """Return the shares of relevance on the small grid `[n, g, g]`; NaN for maps without relevance."""
    return shares(pool(maps.values.clip(min=0), (min(GRID, maps.size[0]), min(GRID, maps.size[1]))))


def find_clusters(maps: Maps, classes: list[str]) -> list[Cluster]:
    """Return the clusters of classes with enough maps, largest first; `classes` `[n]` are the explained classes."""
    grid = pool_maps(maps)
    usable = np.flatnonzero(np.isfinite(grid).all((1, 2)))
    members_of: dict[str, list[int]] = {}
    for number in usable.tolist():
        members_of.setdefault(classes[number], []).append(number)
    largest = set(sorted(members_of, key=lambda name: -len(members_of[name]))[:MOST_CLASSES])
    result = []
    for name in (name for name in members_of if name in largest):
        members = np.array(members_of[name], dtype=np.int64)
        total = len(members)
        if total < LEAST:
            continue
        if total > MOST_OF_CLASS:  # the eigenvalues of more maps take minutes
            members = members[np.linspace(0, total - 1, MOST_OF_CLASS).round().astype(int)]
        labels = spectral(np.sqrt(grid[members]).reshape(len(members), -1))
        parts = [members[labels == k] for k in range(labels.max() + 1)]
        for part in sorted(parts, key=len, reverse=True):
            mean = grid[part].mean(0)
            typical = np.argsort(((grid[part] - mean) ** 2).sum((1, 2)), kind="stable")
            result.append(Cluster(name, len(members), part[typical], maps.values[part].mean(0)))
    return result


def spectral(points: Floats) -> Integers:
    """Return the cluster `[n]` of each point `[n, d]`; the eigengap determines their number, up to `MOST_CLUSTERS`."""
    from scipy.sparse.csgraph import laplacian  # scipy takes a second to start
    from sklearn.cluster import SpectralClustering  # scikit-learn takes seconds to start
    from sklearn.neighbors import kneighbors_graph  # as above

    least, most = NEIGHBORS
    near = kneighbors_graph(points, max(least, min(most, len(points) // 8)), include_self=False)
    affinity = (0.5 * (near + near.T)).toarray()
    values = np.linalg.eigvalsh(laplacian(affinity, normed=True))
    count = int(np.diff(values[: MOST_CLUSTERS + 1]).argmax()) + 1
    if count == 1:
        return np.zeros(len(points), dtype=np.int64)
    method = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected")  # separate groups are expected
        return np.asarray(method.fit_predict(affinity), dtype=np.int64)


FEWEST = 20
"""Minimum number of images."""
PERPLEXITY = 30
DIMENSIONS = 50
"""Dimensions after a PCA, before t-SNE."""
BATCH = 4
"""Images per forward pass; 16 of 224 pixels need 400 MB more memory."""


class Features:
    """Collects the pooled features of images: the activations of the model's default layer, averaged over positions.

    `failed` is whether the model has no layer with positions.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.failed = model, False
        self.keys: list[int] = []
        self._values: list[NDArray[np.float64]] = []
        self._waiting: list[tuple[int, Image.Image]] = []

    def add(self, key: int, image: Image.Image) -> None:
        """Add an image."""
        self._waiting.append((key, image))
        if len(self._waiting) == BATCH:
            self._compute()

    def places(self) -> list[list[float]]:
        """Return the key and the position of each image; empty if `project` returns None."""
        self._compute()
        found = project(np.concatenate(self._values)) if self._values else None
        places = [] if found is None else zip(self.keys, found.tolist(), strict=True)
        return [[key, round(x, 4), round(y, 4)] for key, (x, y) in places]

    def _compute(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self.failed or not waiting:
            return
        device = next((tensor.device for tensor in self.model.network.parameters()), torch.device("cpu"))
        inputs = torch.cat([self.model.prepare(image) for _, image in waiting]).to(device)
        try:
            maps = explainers.feature_maps(self.model.network, inputs)
        except explainers.ExplainerError:
            self.failed = True
            return
        self.keys += [key for key, _ in waiting]
        self._values.append(maps.float().mean(dim=(2, 3)).cpu().numpy().astype(np.float64))


def project(features: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64] | None:
    """Return positions `[n, 2]` between 0 and 1 of features `[n, d]`, or None for too few images, or equal ones."""
    from sklearn.decomposition import PCA  # scikit-learn takes seconds to start
    from sklearn.manifold import TSNE  # as above

    if len(features) < FEWEST or not np.isfinite(features).all():
        return None
    scaled = features - features.mean(0)
    size = float(np.sqrt((scaled**2).sum(1).mean()))
    if size == 0:
        return None
    scaled = scaled / size
    if min(scaled.shape) > DIMENSIONS:
        scaled = PCA(DIMENSIONS, random_state=seed).fit_transform(scaled)
    perplexity = min(PERPLEXITY, (len(scaled) - 1) / 3)
    method = TSNE(2, perplexity=perplexity, init="pca" if scaled.shape[1] > 1 else "random", random_state=seed)
    places = np.asarray(method.fit_transform(scaled), dtype=np.float64)
    low, high = places.min(0), places.max(0)
    return (places - low) / np.where(high > low, high - low, 1.0)
